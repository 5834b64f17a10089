"""The coordinator: from Kafka records to decisions, and to the tables that show them.

Begin with `coordinator.py`, then `run.py` and `round.py`. Only this order of the steps in `round.py` and
`coordination/batch.py` survives a kill: change it with the crash tests at hand.
"""
