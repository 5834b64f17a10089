"""Delta tables without Spark, for consumers and for questions that people ask.

Begin with `table.py`. It follows Delta's protocol for readers: a feature that it does not know is an error by name.
"""
