"""The file of a commit in a table's log, and the marker in it: JSON of a coordinator in the commit's `userMetadata`.

Other writers may put anything there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any


def commit_file(version: int) -> str:
    """Name of a commit's file in the table's log."""
    return f"{version:020}.json"


def marker_of(commit: str) -> dict[str, Any]:
    """The marker in the text of a commit, empty where there is none."""
    for line in commit.split("\n"):  # not `splitlines`: JSON has U+2028 as it is
        if line.startswith('{"commitInfo"'):
            with suppress(ValueError):
                return parsed(json.loads(line)["commitInfo"].get("userMetadata"))
    return {}


def parsed(text: str | None) -> dict[str, Any]:
    """Reads a commit's `userMetadata`, empty where that is no marker."""
    try:
        marker = json.loads(text or "null")
    except ValueError:
        return {}
    return marker if isinstance(marker, dict) else {}
