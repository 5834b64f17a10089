"""Which versions of a table are kept, by its commits."""

from __future__ import annotations

import json
from typing import Any, cast

from commitlake.spark.files import FileSystem
from commitlake.tables import commits


class Log:
    """A Delta log with one commit."""

    def __init__(self, *actions: dict[str, Any]) -> None:
        self._text = "".join(f"{json.dumps(action, ensure_ascii=False)}\n" for action in actions)

    def read(self, _: str) -> str:
        return self._text


def test_a_commit_is_cut_at_its_line_ends_alone() -> None:
    """Delta writes U+2028 as it is, for example in the statistics of a string; Python takes it for a line's end."""
    actions = [{"add": {"path": "a.parquet", "stats": "x\u2028y\x85z"}}, {"remove": {"path": "b.parquet"}}]
    assert commits.actions_of(cast("FileSystem", Log(*actions)), 7) == actions
