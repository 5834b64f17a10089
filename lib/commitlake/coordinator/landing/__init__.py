"""Kafka records come to stand in Delta tables: read, parsed, classified, written."""

from __future__ import annotations
