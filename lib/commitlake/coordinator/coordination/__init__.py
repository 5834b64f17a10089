"""Landed rows go through the state machine, and its events to the tables, in the one order that survives a kill.

Begin with `batch.py`, the steps of a batch; `state.py` is the wall to the state machine.
"""
