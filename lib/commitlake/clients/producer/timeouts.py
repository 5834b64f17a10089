"""Time-outs of producers: RocketMQ counts them in ms, so here a number is one of ms."""

from __future__ import annotations

from datetime import timedelta

from commitlake.errors import MQClientException
from commitlake.protocol.durations import DAY_MS, duration_ms

Timeout = int | str | timedelta
"""A number of ms, a text with a unit such as `15s`, or a `timedelta`."""
_MOST_MS = 20 * DAY_MS
"""Clients of Kafka count ms in 31 bits, and what they add to a time-out must fit, too."""


def milliseconds(name: str, given: object) -> int:
    """Length in ms.

    Args:
        name: of the argument, for the error.
        given: what should be a `Timeout`.

    Raises:
        MQClientException: it is none, or longer than 20 days.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        ms = duration_ms(given / 1_000) if abs(given) <= _MOST_MS else None  # an int may be too large for a float
    else:
        ms = duration_ms(given)
    if ms is None or ms > _MOST_MS:
        msg = f"{name}: {given!r:.100} is not allowed; give ms from 0 to '20d', a text such as '15s', or a timedelta"
        raise MQClientException(msg)
    return ms
