"""What CommitLake needs of Kafka: topics, client options, and an embedded broker."""
