"""Checks of the arguments of a consumer."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from commitlake.errors import ArgumentError
from commitlake.protocol.durations import DAY_MS, duration_ms

Start = str | int | datetime
Tags = str | list[str] | tuple[str, ...]
"""A tag, tags joined by `||` as in RocketMQ, or a list of tags."""
_LONGEST_MS = 36_500 * DAY_MS
_NAMED = {"first": 0, "newest": None}
_LEAST_MS = 10**11
"""A time in 1973: a smaller number is most likely today's time in seconds."""


def seconds(name: str, given: object) -> float:
    """The length in seconds of a duration such as `5m`, 300 or a `timedelta`.

    Raises:
        ArgumentError: `given` is no duration above 0, or one of more than 100 years.
    """
    ms = duration_ms(given)
    if not ms or ms > _LONGEST_MS:
        msg = f"{name}: {given!r} is not allowed; give a text such as 500ms, 10s or 5m, seconds above 0, or a timedelta"
        raise ArgumentError(msg)
    return ms / 1_000


def whole(name: str, given: object) -> int:
    """A whole number from 1.

    Raises:
        ArgumentError: `given` is anything else.
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        msg = f"{name}: {given!r:.100} is not allowed; give a whole number from 1"
        raise ArgumentError(msg)
    return given


def start_ms(given: Start) -> int | None:
    """Where a group begins, ms since epoch, UTC: 0 for the first message, None for the newest.

    Raises:
        ArgumentError: `given` is neither `first`, `newest` nor a time.
    """
    if given in _NAMED:
        return _NAMED[str(given)]
    if isinstance(given, datetime):
        if given.tzinfo is None:
            msg = f"start: {given!r} has no time zone; give one, for example datetime.now(UTC)"
            raise ArgumentError(msg)
        return int(given.timestamp() * 1_000)
    if isinstance(given, int) and (given == 0 or given >= _LEAST_MS):
        return given
    msg = f"start: {given!r} is not allowed; give 'first', 'newest', ms since epoch (13 digits) or an aware datetime"
    raise ArgumentError(msg)


def checked_group(group: str) -> str:
    """The name of a group, as a plain string.

    Raises:
        ArgumentError: the name is no string, empty, or too long.
    """
    # Receipts are in a directory `consumer_group=<name>`, percent-encoded; a directory name has at most 255 bytes.
    if not isinstance(group, str) or not 1 <= len(quote(group, safe="", errors="replace")) <= 240:
        msg = f"group: {group!r:.100} is not allowed; give a name of 1 to 240 characters, of which é counts as 6"
        raise ArgumentError(msg)
    return str.__str__(group)  # a member of a string Enum becomes its value


def topics_of(given: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The names of one or several topics, as plain strings.

    Raises:
        ArgumentError: no name is given, or something else than strings.
    """
    names = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))
    if not names or not all(isinstance(name, str) and name for name in names):
        msg = f"topic: {given!r:.100} is not allowed; give the name of a topic, or a list of them"
        raise ArgumentError(msg)
    return tuple(map(str.__str__, names))  # a member of a string Enum becomes its value


def tags_of(given: Tags | None) -> list[str] | None:
    """The tags as a list; None for all, which None, an empty text or `*` mean.

    Raises:
        ArgumentError: no tag is given, or something else than tags.
    """
    if given is None or given in ("", "*"):
        return None
    if not isinstance(given, str | list | tuple) or not all(isinstance(each, str) for each in given):
        raise _refused(given)
    tags = [tag for each in given.split("||") if (tag := each.strip())] if isinstance(given, str) else list(given)
    if not tags or any(tag != tag.strip() or tag in ("", "*") or "||" in tag for tag in tags):
        raise _refused(given)
    return [str.__str__(tag) for tag in tags]  # a member of a string Enum becomes its value


def _refused(given: object) -> ArgumentError:
    allowed = "give a tag, tags joined by ||, such as 'paid || shipped', or a list of tags; None or * for all"
    return ArgumentError(f"tags: {given!r:.200} is not allowed; {allowed}")
