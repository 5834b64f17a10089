"""Consumers: committed messages without Spark, with retries, receipts and groups of instances.

The path of a message: `topic` reads a window of rows behind the `cursor`, `filters` keeps the wanted ones, `consume`
hands them over. `receipts` stores the outcome of each message, `group` the owner and the cursor of each queue.
"""
