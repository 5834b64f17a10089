"""The audit, reports from the ledger, and the commands of administrators.

Begin with `audit_rules.py`: what must agree between the tables, one rule each.
"""
