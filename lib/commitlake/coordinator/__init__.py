"""The coordinator: from Kafka records to decisions, and to the tables that show them."""
