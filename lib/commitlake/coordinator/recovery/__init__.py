"""Recovery at a start: one coordinator for each warehouse, cut-short batches completed, open rows found in the tables.

Begin with `recover.py`; `fencing.py` keeps out a second coordinator. The rows of `rebuild.py` must be those that the
state machine held.
"""
