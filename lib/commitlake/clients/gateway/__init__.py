"""A gateway for RocketMQ 5's own clients: it speaks their gRPC protocol, and to Kafka it is a producer. No Spark.

Begin with `service.py`. Where the protocol leaves a choice, the gateway does the same as RocketMQ.
"""
