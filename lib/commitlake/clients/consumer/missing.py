"""Texts for a topic without a table, or without a row: a misspelt name looks like a topic without a message yet."""

from __future__ import annotations

import difflib
from pathlib import Path

from commitlake.config.locations import is_local, local_path, not_there
from commitlake.config.terminal import printable
from commitlake.protocol.topic_names import from_path_name

_WAIT = "wait: the first row of a topic becomes visible some seconds after its commit"


def told(place: str) -> str:
    """The text for a topic without a table, which would be at `place`."""
    return f"there is no table at {place}; check the name, or {_WAIT}{_instead(place)}"


def no_row(place: str) -> str:
    """The text for a topic whose table at `place` has no row."""
    return f"the table at {place} has no row: what was sent is pending, delayed or rolled back, or {_WAIT}"


def _instead(place: str) -> str:
    """The topics that exist, as a clause; empty for a place that is not local, or in a catalog."""
    table = local_path(place)
    topics = table.parent
    if not is_local(place) or topics.name != "topics":
        return ""
    if not topics.parent.is_dir():
        return f"; warehouse: {not_there(str(topics.parent))}"
    places = [each for each in Path(topics).glob("*") if each != table and _may_be_table(each)]
    names = sorted(printable(from_path_name(each.name)) for each in places)
    if not names:
        return "; the warehouse has no other topic yet"
    near = difflib.get_close_matches(from_path_name(table.name), names, n=3) or names[:5]
    more = f" and {len(names) - len(near)} more" if len(near) < len(names) else ""
    return f"; topics that are there: {', '.join(near)}{more}"


def _may_be_table(place: Path) -> bool:
    try:
        return (place / "_delta_log").is_dir()
    except OSError:
        return True  # the directory belongs to another user
