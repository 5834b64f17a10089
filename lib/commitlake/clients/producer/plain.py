"""Converts an application's values into the plain values of a record, or refuses them before anything is sent.

`str()` of a member of `class Topic(str, Enum)` is the member's name, and `str(True)` is `True`. So each value of a
message goes through here, on every path, and becomes exactly a `str`, an `int` or `bytes`.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from numbers import Real
from typing import Any

from commitlake.clients.renamed import warn_user
from commitlake.errors import ArgumentError, RecordError
from commitlake.protocol import database_row, headers
from commitlake.protocol.durations import DAY_MS, duration_ms
from commitlake.protocol.encoding import MAX_ID_LENGTH, plain_text, utf8
from commitlake.protocol.postgresql import TRANSACTION

PROOFS = (TRANSACTION, database_row.NAME)
"""Properties that name what answers the checks of one transaction."""
_LONGEST_MS = 20 * DAY_MS
"""Kafka's clients count ms in 31 bits (24 days), and add something to a time-out."""
_MS_FROM = 1_000
"""A number from here on still means ms, as until 0.2: nobody waits for a quarter of an hour."""
_UNCLEAR_FROM = 100
MOST = 10**18
"""Larger numbers become this one, which is as wrong: Python makes no text of a number of more than 4 300 digits."""
_MOST_IMMUNITY_S = 2**31 - 1
"""The largest value of the column; landing counts a number of more than 18 digits as absent."""


def milliseconds(name: str, given: object) -> int:
    """Length in ms of a time-out, a `Duration`; the error names the argument.

    Until 0.2 a number meant ms. One from 1 000 up still does, with a warning; version 0.4 will refuse it.

    Raises:
        ArgumentError: `given` is no `Duration`, longer than 20 days, or a number that may mean either, 100 to 999.
    """
    number = given if isinstance(given, int | float) else 0
    ms = int(number) if _MS_FROM <= number <= _LONGEST_MS else duration_ms(given)
    if _MS_FROM <= number <= _LONGEST_MS:
        warn_user(f"{name}: a number means seconds now; write '{given:.0f}ms'", FutureWarning)
    is_unclear = _UNCLEAR_FROM <= number < _MS_FROM
    if ms is None or ms > _LONGEST_MS or is_unclear:
        hint = ""
        if is_unclear:
            hint = f"; a number means seconds, and meant ms before 0.3, so write '{given:.0f}s' or '{given:.0f}ms'"
        allowed = "seconds below 100, a text such as '500ms' or '15s', or a timedelta; at most 20 days"
        msg = f"{name}: {given!r:.100} is not allowed; give {allowed}{hint}"
        raise ArgumentError(msg)
    return ms


def shown(given: object) -> str:
    """The text of a value for an error, even if its `repr` fails."""
    try:
        return f"{given!r:.100}"
    except Exception:  # for example of a very long number, or of a row whose session is gone
        return f"a {type(given).__name__}"


def text(name: str, given: object, reason: str | None = None) -> str:
    """A string of any kind as a plain one.

    Args:
        name: name of the value, for the error.
        given: the value, which should be a string.
        reason: landing's reason for a refusal.

    Raises:
        RecordError: `given` is no string.
    """
    if not isinstance(given, str):
        msg = f"{name} is {shown(given)}; it must be a string"
        raise RecordError(msg, reason)
    return plain_text(given)


def data(name: str, given: object, reason: str | None = None) -> bytes:
    """Bytes; mutable ones are copied, and a string becomes UTF-8. Arguments and errors are as for `text`."""
    if isinstance(given, str):
        return utf8(plain_text(given))
    try:
        if isinstance(given, bytes | bytearray | memoryview):
            return given if type(given) is bytes else memoryview(given).tobytes()
    except ValueError:  # the memoryview was released
        pass
    msg = f"{name} is {shown(given)}; it must be bytes, which may be empty, or a string"
    raise RecordError(msg, reason)


def whole(given: Any) -> int | None:
    """A whole number of any type, limited to -10^18 to 10^18; None for anything else, also for True and 1.0."""
    if isinstance(given, bool):
        return None
    try:
        return max(-MOST, min(operator.index(given), MOST))
    except TypeError:
        return None


def id_of(name: str, given: object) -> str | None:
    """A message id or a transaction id; None for None.

    Raises:
        RecordError: `MISSING_UNIQ_KEY`, `given` is no string of 1 to 255 characters, or has a lone surrogate.
    """
    if given is None:
        return None
    found = plain_text(given) if isinstance(given, str) else ""
    if not 1 <= len(found) <= MAX_ID_LENGTH:
        wrong = f"{len(found)} characters" if isinstance(given, str) else type(given).__name__
    elif any("\ud800" <= letter <= "\udfff" for letter in found):
        wrong = "a lone surrogate, which UTF-8 can't write"
    else:
        return found
    msg = (
        f"{name} is {shown(given)} ({wrong}), allowed is a string of 1 to {MAX_ID_LENGTH} characters; "
        "shorten it, for example to a hash of it, or leave it out for a new id"
    )
    raise RecordError(msg, "MISSING_UNIQ_KEY")


def named(name: object, value: object) -> tuple[str, str]:
    """Name and value of a property as plain strings.

    Raises:
        RecordError: one of them is no string of at least one character.
    """
    if not (isinstance(name, str) and isinstance(value, str) and name and value):
        msg = f"property {shown(name)} is {shown(value)}; its name and value must be strings of at least one character"
        raise RecordError(msg)
    return plain_text(name), plain_text(value)


def free(name: str) -> str:
    """The name of a user property.

    Raises:
        RecordError: the name belongs to the protocol.
    """
    if name in headers.RESERVED_HEADERS:
        own = {headers.KEYS: "keys", headers.TAGS: "tags", headers.UNIQ_KEY: "message_id"}.get(name)
        instead = f"give it as {own}=" if own else "choose another name"
        msg = f"property {shown(name)} has a name of the protocol; {instead}"
        raise RecordError(msg)
    return name


def immunity_s(given: object) -> int | None:
    """An immunity in whole seconds, rounded up: landing counts anything but a whole number as absent.

    None, and -1 as in RocketMQ, mean that the message has no immunity of its own.

    Raises:
        RecordError: `given` is no duration.
    """
    if given is None or whole(given) == -1:
        return None
    ms = ms_of(given)
    if ms is None:
        msg = f"check_immunity_seconds is {shown(given)}; give seconds from 0 up, a text such as '60s', or a timedelta"
        raise RecordError(msg)
    return min(-(-ms // 1_000), _MOST_IMMUNITY_S)


def ms_of(given: Any, per_second: int = 1) -> int | None:
    """Length in ms of a duration; None if `given` is none. A fraction counts units of 1 / `per_second` s."""
    number: float | None = whole(given)
    if number is None and not isinstance(given, bool) and isinstance(given, Real):
        with suppress(OverflowError, TypeError):  # raised by a fraction that is too large, and by numpy's timedelta64
            number = float(given) / per_second
    return duration_ms(given if number is None else number)
