"""Properties of half messages whose local transaction is a commit of Delta tables."""

from __future__ import annotations

import json
from collections.abc import Sequence

from commitlake.clock import now_ms

TABLES = "delta.tables"
"""A JSON list of the tables' places."""
DEADLINE = "delta.deadline"
"""Ms since epoch, UTC: rows that are not there by then never come."""


def properties(places: Sequence[str], deadline_ms: int) -> dict[str, str]:
    """What a half message says of its tables; the time until the deadline is in ms, from now on."""
    return {TABLES: json.dumps(places), DEADLINE: str(now_ms() + deadline_ms)}
