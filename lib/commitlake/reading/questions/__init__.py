"""Questions that people ask, answered from the tables by DuckDB, without Spark and without a running coordinator.

Begin with `tables.py`. A question is an SQL in the file of its subject; nothing here writes.
"""
