"""Properties of half messages whose local transaction is a commit of Delta tables."""

from __future__ import annotations

import json
from collections.abc import Sequence

from commitlake.errors import RecordError
from commitlake.protocol.clock import now_ms

_LATEST_MS = 1 << 63

TABLES = "delta.tables"
"""A JSON list of the tables' places."""
DEADLINE = "delta.deadline"
"""Ms since epoch, UTC: rows that are not there by then never come."""


def properties(places: Sequence[str], deadline_ms: int) -> dict[str, str]:
    """What a half message says of its tables; the time until the deadline is in ms, from now on."""
    return {TABLES: json.dumps(places), DEADLINE: str(now_ms() + deadline_ms)}


def places_of(text: str) -> list[str]:
    """The tables that a half message names.

    Raises:
        RecordError: it names none; whoever may write to `half` can send anything.
    """
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, list) or not places or not all(isinstance(each, str) and each for each in places):
        msg = f"{TABLES}: {text[:80]!r} is not allowed; allowed is a JSON list of the tables' places"
        raise RecordError(msg)
    return places


def deadline_of(text: str) -> int:
    """Ms since epoch, UTC.

    Raises:
        RecordError: it is no time. As one that is over it would refuse rows that may still come.
    """
    if not text.isdecimal() or len(text) > len(str(_LATEST_MS)) or int(text) >= _LATEST_MS:
        msg = f"{DEADLINE}: {text[:80]!r} is not allowed; allowed are ms since epoch, UTC"
        raise RecordError(msg)
    return int(text)
