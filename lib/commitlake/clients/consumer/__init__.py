"""Consumers: committed messages without Spark, with retries, receipts and groups of instances.

The way of a message: `topic` reads a window of rows behind the `cursor`, `filters` keeps those that are wanted,
`consume` hands them over, `receipts` keeps what became of each, `group` who reads which queue and how far it came.
"""
