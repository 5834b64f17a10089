"""Time-outs of producers; a number counts ms, as in RocketMQ."""

from __future__ import annotations

from datetime import timedelta

from commitlake.errors import MQClientException
from commitlake.protocol.durations import DAY_MS, duration_ms

Timeout = int | str | timedelta
"""A number of ms, a text with a unit such as `15s`, or a `timedelta`."""
_MOST_MS = 20 * DAY_MS
"""Kafka's clients count ms in 31 bits (24 days), and add something to a time-out."""


def milliseconds(name: str, given: object) -> int:
    """Length in ms of a `Timeout`; the error names the argument.

    Raises:
        MQClientException: `given` is no `Timeout`, or longer than 20 days.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        ms = duration_ms(given / 1_000) if abs(given) <= _MOST_MS else None  # an int may be too large for a float
    else:
        ms = duration_ms(given)
    if ms is None or ms > _MOST_MS:
        msg = f"{name}: {given!r:.100} is not allowed; give ms from 0 to '20d', a text such as '15s', or a timedelta"
        raise MQClientException(msg)
    return ms
