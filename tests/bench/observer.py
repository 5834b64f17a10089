"""What a run did, seen from outside: the logs of Delta tables in the file system, and what the load has written down.

A row is visible when the commit that holds it is; its time is that of the log file of the commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq


class Added(NamedTuple):
    """A data file that a commit added."""

    path: Path
    partition: Mapping[str, str]
    rows: int
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Commit:
    """A commit of a Delta table; `at` in s since epoch, `added` without what compaction wrote again."""

    table: str
    version: int
    at: float
    operation: str
    added: tuple[Added, ...] = field(repr=False)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.added)

    @property
    def oldest_age(self) -> float:
        """Of rows that it made visible: seconds since the append of the oldest half message."""
        stored = min(file.stats["minValues"]["stored_at"] for file in self.added)
        return self.at - float(np.datetime64(stored.removesuffix("Z").split("+")[0], "us").astype("int64")) / 1e6

    def column(self, name: str) -> np.ndarray:
        """One column of the appended rows, in the order of the files."""
        return np.concatenate([_column(file, name) for file in self.added]) if self.added else np.array([])


class TableLog:
    """The commits of a table as they come; a table that is not there yet has none.

    Attributes:
        commits: all that have been read, oldest first.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name or path.name
        self.commits: list[Commit] = []

    def read(self) -> list[Commit]:
        """Reads what has been committed since the last call, and returns it."""
        begin = self.commits[-1].version + 1 if self.commits else 0
        files = sorted(self.path.glob("_delta_log/" + "[0-9]" * 20 + ".json"))
        new = [self._commit(file) for file in files if int(file.stem) >= begin]
        self.commits += new
        return new

    def rows(self) -> int:
        """How many rows have been appended by now."""
        self.read()
        return sum(commit.rows for commit in self.commits)

    def appends(self, begin: float = 0, end: float = math.inf) -> list[Commit]:
        """The commits by now that appended rows, of those between two times (s since epoch)."""
        self.read()
        return [commit for commit in self.commits if commit.added and begin <= commit.at < end]

    def _commit(self, file: Path) -> Commit:
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        adds = [action["add"] for action in actions if "add" in action]
        added = tuple(_added(self.path, add) for add in adds if add["dataChange"])
        operations = [action["commitInfo"]["operation"] for action in actions if "commitInfo" in action]
        return Commit(self.name, int(file.stem), file.stat().st_mtime, "".join(operations), added)


def tables(warehouse: Path) -> list[TableLog]:
    """All tables of a warehouse, in the order of their names."""
    logs = [*warehouse.glob("*/_delta_log"), *warehouse.glob("topics/*/_delta_log")]
    return [TableLog(log.parent, str(log.parent.relative_to(warehouse))) for log in sorted(logs)]


class Sent:
    """What a load has appended to Kafka, as its log tells.

    `at` and `due` are in s since epoch; `due` is when a row should be visible: the append time of a transaction's op,
    or the time that a delayed message names.
    """

    def __init__(self, log: Path) -> None:
        text = log.read_text()
        lines = [line.split(",") for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written
        self._source = np.array([line[0] for line in lines])
        numbers = np.array([line[1:] for line in lines], dtype=np.int64).reshape(-1, 6)
        self._queue, self._offset, self.count, self.committed, at_ms, due_ms = numbers.T
        self.at, self.due = at_ms / 1_000, due_ms / 1_000

    def rate(self, begin: float, end: float) -> float:
        """Transactions a second between two times (s since epoch)."""
        counted = (self._source == "half") & (self.at >= begin) & (self.at < end)
        return float(self.count[counted].sum() / (end - begin))

    def due_of(self, source: str, queues: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """When each row was due, NaN where another load has sent it; `source` is `half` or `messages`."""
        due = np.full(len(queues), np.nan)
        for queue in np.unique(queues[np.isin(queues, self._queue[self._source == source])]):
            own, rows = (self._source == source) & (self._queue == queue), queues == queue
            begins, counts = self._offset[own], self.count[own]
            nth = np.searchsorted(begins, offsets[rows], "right") - 1
            is_own = (nth >= 0) & (offsets[rows] < begins[nth] + counts[nth])
            due[rows] = np.where(is_own, self.due[own][nth], np.nan)
        return due

    def expected(self, source: str, begin: float, end: float) -> int:
        """How many rows are to be visible of those due between two times (s since epoch)."""
        return int(self.committed[(self._source == source) & (self.due >= begin) & (self.due < end)].sum())


@dataclass(frozen=True)
class Lateness:
    """Seconds from when each row was due to the commit that holds it."""

    due: np.ndarray
    late: np.ndarray

    @classmethod
    def of(cls, commits: Iterable[Commit], sent: Sent, source: str, queue: str, offset: str) -> Lateness:
        """Of all rows in commits, by the columns that name their place in Kafka."""
        parts = []
        for commit in commits:
            due = sent.due_of(source, commit.column(queue), commit.column(offset))
            parts.append((due, commit.at - due))
        dues, lates = zip(*parts, strict=True) if parts else ([np.array([])], [np.array([])])
        return cls(np.concatenate(dues), np.concatenate(lates))

    def between(self, begin: float, end: float) -> Lateness:
        """Of the rows that were due between two times (s since epoch)."""
        inside = (self.due >= begin) & (self.due < end)
        return Lateness(self.due[inside], self.late[inside])

    def __len__(self) -> int:
        return len(self.late)

    @property
    def figures(self) -> dict[str, float]:
        """Percentiles in seconds."""
        if not len(self.late):
            return {"rows": 0}
        p50, p99 = np.percentile(self.late, [50, 99])
        return {"p50_s": p50, "p99_s": p99, "max_s": self.late.max(), "rows": len(self.late)}


def rounds(warehouse: Path, begin: float = 0, end: float = math.inf) -> list[tuple[float, float]]:
    """The coordinator's rounds, each from one commit of `batches` to the next, between two times (s since epoch)."""
    return list(pairwise(commit.at for commit in TableLog(warehouse / "batches").appends(begin, end)))


def durations(spans: Iterable[tuple[float, float]]) -> np.ndarray:
    """Seconds that each round took."""
    return np.array([end - begin for begin, end in spans])


def _added(table: Path, add: Mapping[str, Any]) -> Added:
    stats = json.loads(add.get("stats") or "{}")
    path = table / unquote(add["path"])
    rows = stats["numRecords"] if "numRecords" in stats else pq.read_metadata(path).num_rows
    return Added(path, add["partitionValues"], rows, stats)


def _column(file: Added, name: str) -> np.ndarray:
    """A partition's value is in the log, not in the file."""
    if name in file.partition:
        return np.full(file.rows, int(file.partition[name]))
    # Not `read_table`: it would take the directories for partitions.
    found: np.ndarray = pq.ParquetFile(file.path).read([name]).column(name).to_numpy()
    return found
