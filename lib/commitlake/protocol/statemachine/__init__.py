"""The rules of coordination as pure functions on numpy rows: no Spark, no Kafka client, no clock."""

from __future__ import annotations
