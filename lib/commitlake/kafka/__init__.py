"""Kafka from the coordinator's side: topics, client options, where logs end, and an embedded broker.

Begin with `clients.py`. Producers and consumers of applications are in `clients/`, with clients of their own.
"""
