"""Kafka records come to stand in Delta tables: read, parsed, judged, written."""

from __future__ import annotations
