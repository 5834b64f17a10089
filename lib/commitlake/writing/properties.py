"""Properties of half messages whose local transaction is a commit of Delta tables."""

from __future__ import annotations

TABLES = "delta.tables"
"""A JSON list of the tables' places."""
DEADLINE = "delta.deadline"
"""Ms since epoch, UTC: rows that are not there by then never come."""
