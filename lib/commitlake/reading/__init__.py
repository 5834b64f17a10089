"""Delta tables without Spark, for consumers and for questions that people ask.

Begin with `table.py`, which follows Delta's protocol for readers: an unknown feature is an error that names it.
"""
