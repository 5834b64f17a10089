"""Access to Kafka: topics, client options, errors, and an embedded broker."""
