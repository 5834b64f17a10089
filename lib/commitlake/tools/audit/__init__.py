"""The audit, reports from the ledger, and the commands of administrators.

Begin with `audit_rules.py`: the rules by which the tables must agree.
"""
