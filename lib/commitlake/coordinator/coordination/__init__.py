"""Coordination puts landed rows through the state machine, and its events into tables, in an order that survives kills.

Begin with `batch.py`, the steps of a batch; `state.py` is the boundary to the state machine.
"""
