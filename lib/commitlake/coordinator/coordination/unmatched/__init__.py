"""Ops and parts whose first half message is not open: the ledger says what becomes of them.

Begin with `resolve.py`; `protocol/statemachine/judge.py` has the rule.
"""
