"""Durations as users write them: texts such as `500ms`, `6s`, `5m`, `72h`, `40d`, numbers of seconds, `timedelta`."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from commitlake.errors import ArgumentError

HOUR_MS = 3_600_000
_MOST_MS = 2**63 - 1
DAY_MS = 24 * HOUR_MS
MARGIN_MS = 600_000
"""Names are held this much longer than their window: a batch's time is that of its start, and clocks get corrected."""

Duration = str | float | timedelta
"""A text with a unit, a number of seconds, or a `timedelta`."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}
_DURATION = re.compile(f"([0-9]{{1,18}})({'|'.join(_UNITS_MS)})")


def duration_ms(given: object) -> int | None:
    """Length in ms of a `Duration` from 0 up, rounded; None for anything else."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, int | float) and not isinstance(given, bool):
        return round(given * 1_000) if given >= 0 and given * 1_000 < math.inf else None
    if given == "0":
        return 0  # zero needs no unit
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    return int(found[1]) * _UNITS_MS[found[2]] if found else None


def duration_text(ms: int) -> str:
    """A length as text for a configuration, in the largest unit that divides it."""
    unit = next((unit for unit, size in reversed(_UNITS_MS.items()) if ms and ms % size == 0), "s")
    return f"{ms // _UNITS_MS[unit]}{unit}"


def seconds(name: str, given: object) -> float:
    """Length of a `Duration` in s.

    Args:
        name: the argument's name, for the error.
        given: a `Duration`, or a value of the user's that should be one.

    Raises:
        ArgumentError: `given` is not a `Duration`, or too long.
    """
    ms = duration_ms(given)
    if ms is None or ms > _MOST_MS:
        msg = f"{name}: {given!r} is not allowed; give a text such as 500ms or 5m, seconds from 0 up, or a timedelta"
        raise ArgumentError(msg)
    return ms / 1_000
