"""The coordinator: from Kafka records to decisions, and to the tables that show them.

Begin with `coordinator.py`, then `run.py` and `round.py`. The order of the steps in `round.py` and
`coordination/batch.py` is what survives a kill: change it with the crash tests at hand.
"""
