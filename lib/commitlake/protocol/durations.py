"""Durations as people write them: `500ms`, `6s`, `5m`, `72h`, `40d`."""

from __future__ import annotations

import re

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}
_DURATION = re.compile(f"([0-9]{{1,18}})({'|'.join(_UNITS_MS)})")


def duration_ms(text: str) -> int | None:
    """Length in ms of a whole number with a unit, None for anything else."""
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _UNITS_MS[found[2]] if found else None
