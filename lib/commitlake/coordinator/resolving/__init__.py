"""Rules answer checks by a join with a business table, or by a database, when no producer is alive to answer them.

Begin with `resolve.py`. A rule without a row never ends a transaction before `transaction.timeout`.
"""
