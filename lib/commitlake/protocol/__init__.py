"""The rules of the coordinator as pure functions: no Spark, no Kafka client, no clock."""

from __future__ import annotations
