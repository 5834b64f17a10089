"""Delta tables without Spark, for consumers and for questions that people ask."""
