"""Ops and parts whose first half message is not open: the ledger determines their resolution.

Begin with `resolve.py`; `protocol/statemachine/judge.py` has the rule.
"""
