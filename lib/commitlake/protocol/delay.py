"""What the delay headers of a message mean. All times are whole ms, absolute ones since epoch, UTC.

`DELAY` above 0 beats the timers; of these the first in `TIMER_DELAY_SEC`, `TIMER_DELAY_MS`, `TIMER_DELIVER_MS` that is
not negative counts. Every header that is there must be a whole number, also one that is beaten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commitlake.errors import RecordError
from commitlake.protocol.wire import DELAY, DELAY_HEADERS, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS

_WHOLE = re.compile("[+-]?[0-9]+")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Delay(NamedTuple):
    """Either `relative_ms`, counted from an append time, or `deliver_at`; the other is None."""

    relative_ms: int | None
    deliver_at: int | None

    def due(self, stored_at: int) -> int:
        """When a message appended at `stored_at` is due; an absolute time in the past stays as it is."""
        return stored_at + (self.relative_ms or 0) if self.deliver_at is None else self.deliver_at


def level_ms(level: str) -> int:
    """Length of a level such as `30s` or `2h`."""
    found = re.fullmatch("([0-9]+)(ms|s|m|h|d)", level)
    if not found:
        msg = f"delay level {level!r} is not a number with a unit, such as 500ms, 30s, 5m, 2h or 1d"
        raise RecordError(msg)
    return int(found[1]) * _UNITS_MS[found[2]]


def parse(headers: Mapping[str, str], levels_ms: Sequence[int], max_ms: int, stored_at: int) -> Delay | None:
    """Delay of a message appended at `stored_at`, None without one.

    Args:
        headers: the message's headers; an empty one is as absent.
        levels_ms: delay of level 1, 2, ...; a higher level means the last of them.
        max_ms: `delay.max`.
        stored_at: append time, against which an absolute time is measured.

    Raises:
        RecordError: `BAD_DELAY` when a header is not a whole number, `DELAY_TOO_LONG` when the delay is above `max_ms`.
    """
    numbers = {name: _number(name, headers[name]) for name in DELAY_HEADERS if headers.get(name)}
    delay = _effective(numbers, levels_ms)
    if delay is not None and delay.due(stored_at) - stored_at > max_ms:
        msg = f"the delay of {delay.due(stored_at) - stored_at} ms is longer than delay.max = {max_ms} ms"
        raise RecordError(msg, "DELAY_TOO_LONG")
    return delay


def _effective(numbers: Mapping[str, int], levels_ms: Sequence[int]) -> Delay | None:
    if numbers.get(DELAY, 0) > 0:
        return Delay(levels_ms[min(numbers[DELAY], len(levels_ms)) - 1], None)
    if numbers.get(TIMER_DELAY_SEC, -1) >= 0:
        return Delay(numbers[TIMER_DELAY_SEC] * 1_000, None)
    if numbers.get(TIMER_DELAY_MS, -1) >= 0:
        return Delay(numbers[TIMER_DELAY_MS], None)
    if numbers.get(TIMER_DELIVER_MS, -1) >= 0:
        return Delay(None, numbers[TIMER_DELIVER_MS])
    return None


def _number(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        msg = f"{name} is {text[:100]!r}; it must be a whole number"
        raise RecordError(msg, "BAD_DELAY")
    # 4 300 digits is where int() gives up; anything above 19 is too long or clamped all the same.
    digits = text.lstrip("+-0")[:20] or "0"
    return -int(digits) if text.startswith("-") else int(digits)
