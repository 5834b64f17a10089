"""Messages that a group has not done: retries, dead letters, and those that it has neither passed nor done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.arguments import Tags
from commitlake.clients.consumer.filters import Filter
from commitlake.clients.consumer.group import kept_receipts, kept_state, refuse_other_table
from commitlake.clients.consumer.receipts import SCHEMA, STATES
from commitlake.clients.consumer.rows import PLACE_COLUMNS
from commitlake.clients.consumer.topic import Topic
from commitlake.config import Config
from commitlake.errors import ArgumentError, WarehouseError
from commitlake.reading.catalog import location
from commitlake.reading.table import Snapshot

_COLUMNS = ("visible_at", "message_id", "transaction_id", "tags", "keys", "properties", *PLACE_COLUMNS)
_NEWEST = f"""
CREATE TEMP TABLE newest AS
SELECT source, source_queue, source_offset, source_index, max(struct_pack(
       round, attempt, rank := list_position({list(STATES)}, state), state, remark)) AS it
FROM receipts GROUP BY ALL
"""
_SQL = """
SELECT m.visible_at, m.message_id, m.transaction_id, m.tags, m.keys, m.properties,
       concat_ws('-', m.source, m.source_queue, m.source_offset, m.source_index) AS position,
       coalesce(it.state, 'OPEN') AS state, coalesce(it.attempt, 0) AS attempts, it.remark AS remark
FROM messages m LEFT JOIN newest n ON m.source = n.source AND m.source_queue = n.source_queue
    AND m.source_offset = n.source_offset AND m.source_index = n.source_index
    AND (NOT m.is_behind OR n.it.round >= $first_round)
WHERE it.state <> 'DONE' OR (it IS NULL AND is_behind)
"""
_ORDERED = ("queue_id", "batch_id")
_BEHIND = pa.field("is_behind", pa.bool_())
_ORDER = [("visible_at", "ascending"), ("position", "ascending")]
_ALL = 1 << 30


def unfinished(
    conf: Config,
    topic: str,
    group: str,
    *,
    tags: Tags | None = None,
    where: str | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Messages that a group has not done, the oldest first, whether or not a consumer of the group runs.

    A group of `consume` begins where its `start` said, and has passed the messages that its filter did not want. A
    group that has only receipts of Spark, or none, begins with the first message. `tags` and `where` are as in
    `consume`; `limit` bounds the messages, also in memory.

    Returns:
        Columns visible_at, message_id, transaction_id, tags, keys, properties, position, state (`OPEN`, `RETRY` or
        `DEAD`), attempts, remark.

    Raises:
        ConsumerError: `where` is no condition.
        WarehouseError: the topic can't be read.
    """
    wanted = Filter(tags, where)
    table = Topic(*location(conf, f"topics/{topic}"))
    state = kept_state(conf.receipts_place, group, topic)
    refuse_other_table(state, table.id, group, topic)
    cursors = None if state is None else assignment.cursors(state)
    receipts, offsets = _receipts(conf, group, topic), list[int]()
    if receipts is not None:  # what waits for its next attempt, and dead letters: the group has passed them
        kept = kept_receipts(conf.receipts_place, group, topic)
        offsets = [row["source_offset"] for row in (*kept.waiting(), *kept.dead())]
    columns = tuple(dict.fromkeys(_COLUMNS + wanted.columns(table.schema.names)))
    parts = table.unfinished(cursors, offsets, columns, _ALL if limit is None else 1)
    schema = pa.schema([*(table.schema.field(name) for name in dict.fromkeys(columns + _ORDERED)), _BEHIND])
    wanted.keep(schema.empty_table())  # so that a wrong condition is told where there is no row, too
    with duckdb.connect(":memory:") as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("receipts", SCHEMA.empty_table() if receipts is None else receipts)
        db.execute(_NEWEST)
        params = {"first_round": assignment.first_rounds(state)[-1]}
        found: list[pa.Table] = []
        for rows, later in [*parts] or [(iter(()), None)]:
            fitting = _Fitting(rows, wanted)
            db.register("messages", pa.RecordBatchReader.from_batches(schema, fitting))
            try:
                found.append(db.sql(_SQL, params=params).to_arrow_table())
            except duckdb.Error as error:  # of the stream; a condition that some row does not fit is told as such
                raise fitting.failure or error from error
            found = [pa.concat_tables(found).sort_by(_ORDER).slice(0, _ALL if limit is None else limit)]
            if (
                later is not None
                and limit
                and found[0].num_rows == limit
                and found[0]["visible_at"][-1].as_py() < later
            ):
                break
        return found[0]


class _Fitting:
    """The batches of rows that a filter wants; `failure` is what the filter raised."""

    def __init__(self, rows: Iterable[pa.RecordBatch], wanted: Filter) -> None:
        self._rows, self._wanted = rows, wanted
        self.failure: ArgumentError | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._rows:
                yield from self._wanted.keep(pa.Table.from_batches([batch])).to_batches()
        except ArgumentError as error:
            self.failure = error
            raise


def is_known(conf: Config, topic: str, group: str) -> bool:
    """Whether a group has read a topic, with `consume` or with Spark."""
    receipts = _receipts(conf, group, topic)
    has_receipts = receipts is not None and any(batch.num_rows for batch in receipts)
    return has_receipts or kept_state(conf.receipts_place, group, topic) is not None


def _receipts(conf: Config, group: str, topic: str) -> pads.Scanner | None:
    """Receipts of the group for the topic; None if there is no table of receipts."""
    try:
        table = Snapshot(f"{conf.receipts_place}/receipts").dataset()
    except WarehouseError:
        return None
    mine = (pads.field("consumer_group") == group) & (pads.field("topic") == topic)
    return table.scanner(columns=[*PLACE_COLUMNS, "round", "attempt", "state", "remark"], filter=mine).to_reader()
