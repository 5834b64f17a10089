"""Receipts, a Delta table of the outcome of each message in each group.

deltalake writes them, even if Spark reads the messages. On a local disk Spark's log store is atomic only within one
JVM. deltalake writes a version by a hard link, which fails if the file exists.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import DeltaTable

from commitlake.clients.consumer import tables
from commitlake.clients.consumer.rows import Place, place_of
from commitlake.config.object_store import storage_options
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.reading.questions.tables import escaped
from commitlake.reading.table import Options, Snapshot

INSTANCE = f"{socket.gethostname()}-{os.getpid()}"
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
_STATS = "state,attempt,round,due_at,source_offset,batch_id,at"
STATES = ("RETRY", "DEAD", "DONE")
"""States in rising order: of two receipts of one attempt, which was handed over twice, the higher state counts."""
_LAST = f"""
SELECT * FROM rows QUALIFY row_number() OVER (
    PARTITION BY source, source_queue, source_offset, source_index
    ORDER BY round DESC, attempt DESC, list_position({list(STATES)}, state) DESC) = 1
"""
_FEW = 16


class Attempt(NamedTuple):
    """The outcome of one attempt.

    Attributes:
        state: `DONE`, `RETRY` or `DEAD`.
        attempt: 1 for the first.
        round: grows each time an administrator sends the message again, or rewinds the group.
        due_ms: when the next attempt is due, ms since epoch, UTC; None without a next one.
        remark: any text.
        at_ms: when the attempt ended, ms since epoch, UTC.
    """

    state: str
    attempt: int
    round: int
    due_ms: int | None
    remark: str | None
    at_ms: int


class Receipt(NamedTuple):
    """The outcome of the messages at `indexes` of a table; `messages` has the columns `RECEIPT_COLUMNS`."""

    messages: pa.Table
    indexes: Sequence[int]
    outcome: Attempt


class Unwritten(NamedTuple):
    """Receipts to write, and the state of the lanes that holds once they are written.

    Attributes:
        receipts: in the order in which messages were finished.
        cursors: cursors of all lanes, as JSON.
        held: queues that this instance must keep.
        changes: `Lanes.changes` at that time.
    """

    receipts: list[Receipt]
    cursors: dict[int, Any]
    held: set[int]
    changes: int


class ReceiptFiles(Snapshot):
    """The table of receipts, shared by all groups of this process."""

    _all: pa.Table | None = None
    _numbers: Mapping[str, list[int]]

    def of_group(self, group: str) -> pa.Table:
        """The files that have receipts of a group."""
        with self._lock:
            files = self.files()
            if files is not self._all:
                numbers: dict[str, list[int]] = {}
                for number, name in enumerate(files["partition.consumer_group"].to_pylist()):
                    numbers.setdefault(name, []).append(number)
                self._all, self._numbers = files, numbers
            return files.take(pa.array(self._numbers.get(group, []), pa.int64()))


class Receipts:
    """The receipts of one group for one topic; creates the table if it is missing.

    Attributes:
        group: the group.
        topic: the topic.
        first_rounds: the round of first attempts, for each reading of the topic. DONE at the first attempt of such a
            round is the usual case, which reading retries skips.
        appender: appends to the table for all of this process.
    """

    def __init__(
        self, place: str, group: str, topic: str, options: Options = None, first_rounds: tuple[int, ...] = (0,)
    ) -> None:
        self.first_rounds = first_rounds
        self.group, self.topic, self._place, self._options = group, topic, place, options
        tables.create(place, SCHEMA, ["consumer_group"], options, {"delta.dataSkippingStatsColumns": _STATS})
        self.appender = tables.appender(place, options)
        self._table = ReceiptFiles.shared(place, options)
        self._seen: set[str] = set()
        self._open: dict[Place, dict[str, Any]] = {}

    def not_simple(self, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
        """Rows of the receipts, without those of messages that were done at the first attempt."""
        simple = {("DONE", 1, first) for first in self.first_rounds}
        found = [each for each in receipts if each.outcome[:3] not in simple]
        return list(table_of([(self, found)]).to_pylist()) if found else []

    def append(self, rows: pa.Table) -> None:
        """Append rows of the table's schema."""
        self.appender.append(rows)
        if self.appender.wants_tidying():
            self.appender.tidy()

    def waiting(self, after_s: float | None = None) -> list[dict[str, Any]]:
        """Receipts of the messages that wait for their next attempt, in the order in which they are due.

        Args:
            after_s: a snapshot read after this time, by the monotonic clock, is new enough; None for now.
        """
        return [row for row in self._newest(after_s) if row["state"] == "RETRY"]

    def dead(self) -> list[dict[str, Any]]:
        """Receipts of the group's dead letters, the oldest first."""
        return [row for row in self._newest() if row["state"] == "DEAD"]

    def send_again(self, letters: Iterable[dict[str, Any]], remark: str, now_ms: int) -> None:
        """Redeliver dead letters to the group at once, from the first attempt on; `now_ms` in ms since epoch, UTC."""
        due = as_datetime(now_ms)
        change = {"state": "RETRY", "attempt": 0, "due_at": due, "at": due, "remark": remark, "instance": INSTANCE}
        rows = [{**row, **change, "round": max(row["round"], self.first_rounds[-1]) + 1} for row in letters]
        if rows:
            self.append(pa.Table.from_pylist(rows, SCHEMA))

    def last_round(self) -> int:
        """The highest round of any receipt of the group."""
        self._table.refresh()
        rounds = self._table.dataset().to_table(["round"], filter=self._mine())["round"]
        return max(pc.max(rounds).as_py() or 0, self.first_rounds[-1])

    def close(self, rows: Iterable[dict[str, Any]], round_: int, now_ms: int) -> None:
        """Mark messages, by receipts that wait or are dead letters, as done: a later round reads them again.

        The new receipts have the round `round_`, which outranks that of `rows`. `now_ms` is in ms since epoch, UTC.
        """
        change = {"state": "DONE", "attempt": 0, "round": round_, "due_at": None, "at": as_datetime(now_ms)}
        closed = [{**row, **change, "remark": "read again", "instance": INSTANCE} for row in rows]
        if closed:
            self.append(pa.Table.from_pylist(closed, SCHEMA))

    def expire(self, before_ms: int) -> None:
        """Delete receipts written before a time (ms since epoch, UTC), but keep waiting messages and dead letters.

        Their newest receipts are first copied as new rows, which changes no answer. Then all old rows are deleted.
        """
        old = [row for row in self._newest() if row["at"] < as_datetime(before_ms)]
        if old:
            self.append(pa.Table.from_pylist([{**row, "at": as_datetime(now_ms())} for row in old], SCHEMA))
        names = f"consumer_group = '{escaped(self.group)}' AND topic = '{escaped(self.topic)}'"
        time = f"arrow_cast({before_ms * 1_000}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        self._delta().delete(f"{names} AND at < {time}")

    def delete_all(self) -> None:
        """Delete all receipts of the group for the topic."""
        self._delta().delete(f"consumer_group = '{escaped(self.group)}' AND topic = '{escaped(self.topic)}'")

    def _delta(self) -> DeltaTable:
        return DeltaTable(self._place, storage_options=storage_options(self._options))

    def _newest(self, after_s: float | None = None) -> list[dict[str, Any]]:
        """The newest receipt of each message that waits or is a dead letter, by due time.

        Files never change, so only new files are read. Files of a compaction can't be told from new ones: when files
        have gone, all files are read again.
        """
        self._table.refresh(after_s)
        files = self._table.of_group(self.group)
        paths = set(files["path"].to_pylist())
        if self._seen - paths:
            self._seen, self._open = set(), {}
        new = files.filter(pa.array([path not in self._seen for path in files["path"].to_pylist()], pa.bool_()))
        new = new.filter(self._may_count(new))
        if new.num_rows:
            rows = self._table.dataset(new).scanner(filter=self._mine() & self._is_not_simple())
            for row in _last_of_each(rows, and_done=bool(self._seen)):
                self._take_in(row)
        self._seen = paths
        return sorted(self._open.values(), key=lambda row: row["due_at"] or row["at"])

    def _mine(self) -> pads.Expression:
        return (pads.field("consumer_group") == self.group) & (pads.field("topic") == self.topic)

    def _is_not_simple(self) -> pads.Expression:
        is_first = (pads.field("attempt") == 1) & pads.field("round").isin(list(self.first_rounds))
        return (pads.field("state") != "DONE") | ~is_first

    def _may_count(self, files: pa.Table) -> pa.Array:
        """For each file, whether by its statistics it may have receipts that `_is_not_simple` selects."""
        if "min.state" not in files.column_names:  # the table of an earlier version
            return pa.repeat(pa.scalar(True), files.num_rows)
        simple = {"state": ["DONE"], "attempt": [1], "round": list(self.first_rounds)}
        alike = [pc.equal(files[f"min.{name}"], files[f"max.{name}"]) for name in simple]
        right = [pc.is_in(files[f"min.{name}"], pa.array(values)) for name, values in simple.items()]
        return pc.invert(reduce(pc.and_, [*alike, *right]).fill_null(False))

    def _take_in(self, row: dict[str, Any]) -> None:
        place = place_of(row)
        known = self._open.get(place)
        if known is not None and _rank(known) > _rank(row):
            return
        if row["state"] == "DONE":
            self._open.pop(place, None)
        else:
            self._open[place] = row


def table_of(parts: Iterable[tuple[Receipts, Sequence[Receipt]]]) -> pa.Table:
    """The receipts of several groups, at least one, as rows of the table."""
    in_table: dict[int, list[tuple[Receipts, Receipt]]] = {}
    for of, receipts in parts:
        for each in receipts:
            in_table.setdefault(id(each.messages), []).append((of, each))
    given, taken = [*chain.from_iterable(in_table.values())], list[pa.Table]()
    for several in in_table.values():
        table = several[0][1].messages
        indexes = np.fromiter(chain.from_iterable(each.indexes for _, each in several), np.int64)
        # `take` gives up Python's lock, and among hundreds of threads waits long to get it back; `slice` keeps it.
        taken += [table.slice(n, 1) for n in indexes] if len(indexes) <= _FEW else [table.take(indexes)]
    messages = pa.concat_tables(taken, promote_options="permissive")  # the types are those that each topic's owner gave
    outcomes = [each.outcome for _, each in given]
    columns: dict[str, list[Any]] = {
        "consumer_group": [of.group for of, _ in given],
        "topic": [of.topic for of, _ in given],
        "state": [each.state for each in outcomes],
        "attempt": [each.attempt for each in outcomes],
        "round": [each.round for each in outcomes],
        "due_at": [None if each.due_ms is None else each.due_ms * 1_000 for each in outcomes],
        "remark": [each.remark for each in outcomes],
        "instance": [INSTANCE] * len(given),
        "at": [each.at_ms * 1_000 for each in outcomes],
    }
    own = pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()})
    own = own.take(np.repeat(np.arange(len(given)), [len(each.indexes) for _, each in given]))
    found = [(own if name in columns else messages)[name] for name in SCHEMA.names]
    return pa.table(found, names=SCHEMA.names).cast(SCHEMA).combine_chunks()


def _last_of_each(rows: pads.Scanner, *, and_done: bool) -> list[dict[str, Any]]:
    """The newest receipt of each message. Those with DONE, of which a history has very many, only with `and_done`."""
    with duckdb.connect(":memory:", config={"threads": 1}) as db:
        db.register("rows", rows.to_reader())
        last = f"SELECT * FROM ({_LAST}) WHERE {and_done} OR state <> 'DONE'"
        return list(db.sql(last).to_arrow_table().cast(SCHEMA).to_pylist())


def _rank(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["round"], row["attempt"], STATES.index(row["state"])
