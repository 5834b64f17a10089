"""What goes over the wire: Kafka topics, records, names, delays. Pure: no Spark, no Kafka client, no clock."""

from __future__ import annotations
