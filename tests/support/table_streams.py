"""How readers see topic tables: as a stream of added files, and as `commitlake.consume` hands messages over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from tests.support.lake import Lake

import commitlake

Place = tuple[str, int, int, int]
"""Source, queue, offset and index of a message."""
_PLACE = ["source", "source_queue", "source_offset", "source_index"]


class AddedFiles:
    """Replays the log of each topic's table, version after version, as a stream that reads it does."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._next: dict[str, int] = {}
        self.seen: Counter[Place] = Counter()

    def read(self) -> list[str]:
        """Takes the versions that have come; returns what no append-only stream may meet."""
        found: list[str] = []
        for topic in self._lake.topics():
            found += self._read(topic, Path(str(self._lake.tables), "topics", topic))
        return found

    def _read(self, topic: str, place: Path) -> Iterator[str]:
        number = self._next.get(topic, 0)
        while (commit := place / "_delta_log" / f"{number:020}.json").exists():
            for line in commit.read_text().splitlines():
                action: dict[str, Any] = json.loads(line)
                self._take(place, action.get("add", {}))
                if action.get("remove", {}).get("dataChange"):
                    yield f"stream of {topic}: version {number} removes rows"
            number += 1
            self._next[topic] = number

    def _take(self, place: Path, added: dict[str, Any]) -> None:
        if added.get("dataChange"):
            rows = pq.read_table(place / unquote(added["path"]), columns=_PLACE, partitioning=None)
            self.seen.update(tuple(row.values()) for row in rows.to_pylist())


class Group:
    """A group of consumers that reads on whenever it is asked to."""

    def __init__(self, lake: Lake, name: str = "campaign") -> None:
        self._lake, self._name = lake, name
        self.got: Counter[Place] = Counter()

    def read(self) -> None:
        """Takes all that is there, each message done at once."""
        for topic in self._lake.topics():
            with commitlake.consume(self._lake.config, topic, group=self._name, follow=False, poll="100ms") as messages:
                for each in messages:
                    self.got[each.source, each.source_queue, each.source_offset, each.source_index] += 1
                    each.done()
