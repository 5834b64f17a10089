"""Receipts: what each group did with each message, as a Delta table of its own.

deltalake writes them, also where Spark reads the messages: on a local disk Spark's log store is atomic within one JVM
only, while deltalake makes a version by a hard link, which fails where the file is already there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable, write_deltalake

from commitlake.consumer import tables
from commitlake.consumer.rows import Rows, place_of
from commitlake.reading.table import Options, Table

INSTANCE = f"{socket.gethostname()}-{os.getpid()}"
TAKEN = (
    *("queue_id", "message_id", "transaction_id", "keys", "batch_id"),
    *("source", "source_queue", "source_offset", "source_index"),
)
SCHEMA = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("message_id", pa.string()),
        ("transaction_id", pa.string()),
        ("keys", pa.string()),
        ("batch_id", pa.int64()),
        ("source", pa.string()),
        ("source_queue", pa.int32()),
        ("source_offset", pa.int64()),
        ("source_index", pa.int32()),
        ("state", pa.string()),
        ("attempt", pa.int32()),
        ("round", pa.int32()),
        ("due_at", pa.timestamp("us", "UTC")),
        ("remark", pa.string()),
        ("instance", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_STATS = "attempt,round,due_at,source_offset,batch_id,at"
_NOT_SIMPLE = (pads.field("state") != "DONE") | (pads.field("attempt") > 1) | (pads.field("round") > 0)
STATES = ("RETRY", "DEAD", "DONE")
"""Of two receipts of one attempt, which happens when it was handed over twice, the higher one counts."""


class Outcome(NamedTuple):
    """What became of one attempt.

    Attributes:
        state: `DONE`, `RETRY` or `DEAD`.
        attempt: 1 for the first.
        round: grows by one each time an administrator sends it again.
        due_ms: when it is due again, ms since epoch, UTC; None unless it is.
        remark: any text.
        at_ms: when that was, ms since epoch, UTC.
    """

    state: str
    attempt: int
    round: int
    due_ms: int | None
    remark: str | None
    at_ms: int


class Receipt(NamedTuple):
    """What became of the messages in some rows."""

    rows: Rows
    indexes: Sequence[int]
    outcome: Outcome


class Receipts:
    """The receipts of one group for one topic; the table is made with the first one.

    Args:
        place: of the table.
        group: the group of consumers.
        topic: the topic.
        options: deltalake's `storage_options`.
    """

    def __init__(self, place: str, group: str, topic: str, options: Options = None) -> None:
        self._place, self._group, self._topic, self._options = place, group, topic, options
        self._written = 0
        tables.create(place, SCHEMA, ["consumer_group"], options, {"delta.dataSkippingStatsColumns": _STATS})
        self._table = Table(place, options)
        self._found: dict[str, list[dict[str, Any]]] = {}

    def write(self, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
        """Append receipts, in one commit; return as rows those that are more than done at the first attempt."""
        if not receipts:
            return []
        rows = pa.concat_tables(
            rows_of(self._group, self._topic, _taken(part), [each.outcome for each in part for _ in each.indexes])
            for part in _by_rows(receipts)
        )
        self.append(rows)
        return list(rows.filter(_NOT_SIMPLE).to_pylist())

    def append(self, rows: pa.Table) -> None:
        """Append rows of the table's schema, and now and then make few files of many."""
        tables.check_there(self._place)
        options = dict(self._options or {}) or None
        write_deltalake(self._place, rows, mode="append", storage_options=options)
        self._written += 1
        if self._written % 200 == 0:
            tables.compact(DeltaTable(self._place, storage_options=options))

    def waiting(self) -> list[dict[str, Any]]:
        """Receipts of the messages that wait for their next attempt, in the order in which they are due."""
        return [row for row in self._newest() if row["state"] == "RETRY"]

    def dead(self) -> list[dict[str, Any]]:
        """Receipts of the group's dead letters, the oldest first."""
        return [row for row in self._newest() if row["state"] == "DEAD"]

    def send_again(self, letters: Iterable[dict[str, Any]], remark: str, now_ms: int) -> None:
        """Let the group have dead letters once more, from its first attempt on."""
        due = pa.scalar(now_ms * 1_000, pa.timestamp("us", "UTC")).as_py()
        change = {"state": "RETRY", "attempt": 0, "due_at": due, "at": due, "remark": remark, "instance": INSTANCE}
        rows = [{**row, **change, "round": row["round"] + 1} for row in letters]
        if rows:
            self.append(pa.Table.from_pylist(rows, SCHEMA))

    def _newest(self) -> list[dict[str, Any]]:
        """The newest receipt of each message that was not simply done at its first attempt, by due time."""
        found = [row for rows in self._read().values() for row in rows]
        newest: dict[tuple[object, ...], dict[str, Any]] = {}
        for row in sorted(found, key=lambda row: (row["round"], row["attempt"], STATES.index(row["state"]))):
            newest[place_of(row)] = row
        return sorted(newest.values(), key=lambda row: row["due_at"] or row["at"])

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        """Such receipts by file. Files never change, so each is read once, and most hold none."""
        self._table.refresh()
        files = self._table.files()
        mine = (pads.field("consumer_group") == self._group) & (pads.field("topic") == self._topic)
        new = files.filter(pa.array([path not in self._found for path in files["path"].to_pylist()], pa.bool_()))
        for index, path in enumerate(new["path"].to_pylist()):
            rows = self._table.dataset(new.slice(index, 1)).to_table(filter=mine & _NOT_SIMPLE)
            self._found[path] = rows.to_pylist()
        self._found = {path: self._found[path] for path in files["path"].to_pylist()}
        return self._found


def rows_of(group: str, topic: str, taken: pa.Table, outcomes: Sequence[Outcome]) -> pa.Table:
    """Rows of the table: the columns `TAKEN` of messages, and what became of each."""
    count = len(outcomes)
    own = {
        "consumer_group": pa.repeat(group, count),
        "topic": pa.repeat(topic, count),
        "state": [each.state for each in outcomes],
        "attempt": [each.attempt for each in outcomes],
        "round": [each.round for each in outcomes],
        "due_at": pa.array([_us(each.due_ms) for each in outcomes], pa.timestamp("us", "UTC")),
        "remark": pa.array([each.remark for each in outcomes], pa.string()),
        "instance": pa.repeat(INSTANCE, count),
        "at": pa.array([_us(each.at_ms) for each in outcomes], pa.timestamp("us", "UTC")),
    }
    columns = [own[name] if name in own else taken[name] for name in SCHEMA.names]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1_000


def _taken(receipts: Sequence[Receipt]) -> pa.Table:
    return receipts[0].rows.table.select(TAKEN).take([index for each in receipts for index in each.indexes])


def _by_rows(receipts: Iterable[Receipt]) -> list[list[Receipt]]:
    """Receipts of messages that are in one table of rows."""
    found: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        found.setdefault(id(receipt.rows), []).append(receipt)
    return list(found.values())
