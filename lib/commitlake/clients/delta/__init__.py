"""Commits of Delta tables as local transactions: the tables' logs answer the checks, without a listener.

Begin with `delta_transaction.py`. Delta's log alone decides whether messages are committed (contract 4.11).
"""
