"""Properties of half messages whose local transaction is a commit of Delta tables."""

from __future__ import annotations

import json
from collections.abc import Sequence

from commitlake.errors import RecordError
from commitlake.protocol.clock import now_ms

_LATEST_MS = 1 << 63

TABLES = "delta.tables"
"""Property with a JSON list of the tables' places."""
DEADLINE = "delta.deadline"
"""Property with the time, in ms since epoch, UTC, after which no rows are accepted."""


def properties(places: Sequence[str], deadline_ms: int) -> dict[str, str]:
    """The properties of a half message about its tables; `deadline_ms` is the time from now until the deadline, ms."""
    return {TABLES: json.dumps(places), DEADLINE: str(now_ms() + deadline_ms)}


def places_of(text: str) -> list[str]:
    """The tables that a half message names.

    Raises:
        RecordError: the text is no list of places; any producer that may write to `half` can send anything.
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
    """The deadline, ms since epoch, UTC.

    Raises:
        RecordError: the text is no time. Read as a past deadline it would refuse rows that may still come.
    """
    if not text.isdecimal() or len(text) > len(str(_LATEST_MS)) or int(text) >= _LATEST_MS:
        msg = f"{DEADLINE}: {text[:80]!r} is not allowed; allowed are ms since epoch, UTC"
        raise RecordError(msg)
    return int(text)
