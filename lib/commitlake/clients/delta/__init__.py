"""A commit of Delta tables as the local transaction: no listener, the tables' logs answer.

Begin with `delta_transaction.py`. What is committed is decided by Delta's log alone (contract 4.11).
"""
