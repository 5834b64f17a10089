"""The meaning of a message's delay headers. All times are whole ms; absolute times are ms since epoch, UTC.

A `DELAY` above 0 takes precedence over the timers. Of `TIMER_DELAY_SEC`, `TIMER_DELAY_MS` and `TIMER_DELIVER_MS`, in
this order, the first that is not negative counts. Every header must be a whole number, even one that does not count.
`landing.parse` has the same rules as Spark expressions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commitlake.errors import RecordError
from commitlake.protocol.durations import duration_ms
from commitlake.protocol.headers import DELAY, DELAY_HEADERS, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS

_WHOLE = re.compile("[+-]?[0-9]+")


class Delay(NamedTuple):
    """Either `relative_ms`, counted from an append time, or `deliver_at`; the other is None."""

    relative_ms: int | None
    deliver_at: int | None

    def due(self, stored_at: int) -> int:
        """Due time of a message appended at `stored_at` (both ms since epoch, UTC); a past time means at once."""
        return stored_at + (self.relative_ms or 0) if self.deliver_at is None else self.deliver_at


def level_ms(level: str) -> int:
    """Length in ms of a level such as `30s` or `2h`.

    Raises:
        RecordError: it is not a number with a unit.
    """
    ms = duration_ms(level)
    if ms is None:
        msg = f"delay level {level!r} is not a number with a unit, such as 500ms, 30s, 5m, 2h or 1d"
        raise RecordError(msg)
    return ms


def parse(headers: Mapping[str, str], levels_ms: Sequence[int], max_ms: int, stored_at: int) -> Delay | None:
    """Delay of a message appended at `stored_at`, None without one.

    Args:
        headers: the message's headers by name; an empty one counts as absent.
        levels_ms: delays of the levels 1, 2, ... in ms; a higher level means the last of them.
        max_ms: `delay.max` in ms.
        stored_at: append time, ms since epoch, UTC; an absolute time is measured from it.

    Raises:
        RecordError: `BAD_DELAY` when a header is not a whole number, `DELAY_TOO_LONG` when the delay is above `max_ms`.
    """
    numbers = {name: _number(name, headers[name]) for name in DELAY_HEADERS if headers.get(name)}
    delay = _effective(numbers, levels_ms)
    if delay is not None and delay.due(stored_at) - stored_at > max_ms:
        msg = f"the delay is {delay.due(stored_at) - stored_at} ms; delay.max is {max_ms} ms"
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
    # int() refuses more than 4 300 digits, so 20 are kept: enough for a delay that is too long, or for the last level.
    digits = text.lstrip("+-0")[:20] or "0"
    return -int(digits) if text.startswith("-") else int(digits)
