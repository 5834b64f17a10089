"""Landing copies Kafka records into Delta tables: it reads, parses, classifies and writes them.

Begin with `land.py`; `classify.py` has the contract's reasons in their order. JVM expressions only: bodies never
pass through Python.
"""
