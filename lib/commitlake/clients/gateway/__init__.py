"""A gateway for RocketMQ 5's own clients: it speaks their gRPC protocol, and to Kafka it is a producer. No Spark.

Begin with `service.py`. What the protocol leaves open is done as RocketMQ does it.
"""
