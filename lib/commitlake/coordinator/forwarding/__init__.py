"""Forwarding sends committed messages to Kafka: a streaming query for each topic of `topics.to_kafka`.

Begin with `to_kafka.py`. At least once, in order: the table `forwarded` has the position of each query.
"""
