"""A start: one coordinator a warehouse, a cut-short batch completed, what is open worked out from the tables.

Begin with `recover.py`; `fencing.py` keeps two apart. What `rebuild.py` works out must be what the state machine held.
"""
