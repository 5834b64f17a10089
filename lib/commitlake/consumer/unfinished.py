"""What a group has not done yet: messages of a topic without a receipt that says so."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from commitlake.config import Config
from commitlake.consumer.filters import Filter
from commitlake.consumer.receipts import SCHEMA, STATES
from commitlake.consumer.rows import PLACE_COLUMNS
from commitlake.errors import WarehouseError
from commitlake.reading.table import Options, Table, location

_SHOWN = ("tags", "keys", "properties")
_SQL = f"""
WITH newest AS (
    SELECT source, source_queue, source_offset, source_index, max(struct_pack(
           round, attempt, rank := list_position({list(STATES)}, state), state, remark)) AS it
    FROM receipts WHERE consumer_group = $group AND topic = $topic GROUP BY ALL)
SELECT m.visible_at, m.message_id, m.transaction_id, m.tags, m.keys, m.properties,
       concat_ws('-', source, source_queue, source_offset, source_index) AS position,
       coalesce(it.state, 'OPEN') AS state, coalesce(it.attempt, 0) AS attempts, it.remark AS remark
FROM messages m LEFT JOIN newest USING (source, source_queue, source_offset, source_index)
WHERE it IS NULL OR it.state <> 'DONE'
ORDER BY visible_at, position
"""


def unfinished(
    conf: Config,
    topic: str,
    group: str,
    *,
    tags: str | None = None,
    where: str | None = None,
    options: Options = None,
) -> pa.Table:
    """Messages that a group has not done, the oldest first, whether or not a consumer of the group runs.

    Args:
        conf: where the tables are.
        topic: the topic.
        group: the group of consumers.
        tags: as in `consume`.
        where: as in `consume`.
        options: deltalake's `storage_options`.

    Returns:
        Columns visible_at, message_id, transaction_id, tags, keys, properties, position, state (`OPEN`, `RETRY` or
        `DEAD`), attempts, remark.

    Raises:
        ConsumerError: `where` is no condition.
        WarehouseError: the topic can't be read.
    """
    wanted = Filter(tags, where)
    messages = Table(location(conf.warehouse, f"topics/{topic}"), options).dataset()
    columns = ["visible_at", "message_id", "transaction_id", *_SHOWN, *PLACE_COLUMNS]
    with duckdb.connect(":memory:") as db:
        db.register("messages", messages.scanner(columns=columns).to_reader())
        db.register("receipts", _receipts(conf, options))
        return wanted.keep(db.sql(_SQL, params={"group": group, "topic": topic}).to_arrow_table())


def _receipts(conf: Config, options: Options) -> Any:
    """Receipts of all groups; none where no consumer ever ran."""
    place = f"{conf.receipts_place}/receipts"
    try:
        return Table(place, options).dataset()
    except WarehouseError:
        return SCHEMA.empty_table()
