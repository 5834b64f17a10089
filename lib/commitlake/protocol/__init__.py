"""The wire format and the rules: headers, records, names, delays, and the state machine.

Begin with `wire.py`. Pure: no Spark, no Kafka client, no clock but `clock.py`; a change here is one of the contract.
"""
