"""Questions that people ask, answered from the tables by DuckDB, without Spark and without a running coordinator."""
