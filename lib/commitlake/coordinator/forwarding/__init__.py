"""Committed messages out to Kafka: a streaming query for each topic of `topics.to_kafka`."""
