"""What may be wrong where a topic has no table: a misspelt name looks like one that has no message yet."""

from __future__ import annotations

import difflib
from pathlib import Path

from commitlake.config.locations import is_local, local_path
from commitlake.protocol.topic_names import from_path_name


def hint(place: str) -> str:
    """What is there instead of a topic's table, for a warning; empty where that can't be told.

    Args:
        place: of the topic's table.
    """
    if not is_local(place):
        return ""
    table = local_path(place)
    topics = table.parent
    if not topics.parent.is_dir():
        return f"; there is no directory {topics.parent} either: check `warehouse`"
    names = sorted(from_path_name(each.name) for each in Path(topics).iterdir()) if topics.is_dir() else []
    if not names:
        return "; the warehouse has no topic yet"
    near = difflib.get_close_matches(from_path_name(table.name), names, n=3) or names[:5]
    return f"; {len(names)} topics are there, for example {', '.join(near)}"
