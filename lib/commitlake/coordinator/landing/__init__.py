"""Kafka records come to stand in Delta tables: read, parsed, classified, written.

Begin with `land.py`; `classify.py` has the contract's reasons in their order. JVM expressions only: bodies never
pass through Python.
"""
