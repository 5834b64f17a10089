"""Delayed messages that are waiting, by topic and business key; each with the handle that recalls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from commitlake import config as configuration
from commitlake.config import Conf
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.encoding import Position
from commitlake.protocol.recall_handle import encode_handle
from commitlake.protocol.wire import RecallRecord
from commitlake.reading.questions.tables import HAS_KEY, Tables, moment, opened
from commitlake.reading.table import Options

COLUMNS = ("topic", "keys", "message_id", "producer_group", "queue", "queue_offset", "deliver_at")

# Messages without an end. This machine's clock may be ahead of Kafka's, so those that were due of late are in it, too.
_WAITING = f"""
SELECT {", ".join(COLUMNS)} FROM delayed d
WHERE deliver_at > {{since}} AND ($topic IS NULL OR topic = $topic)
  AND ($keys IS NULL OR {HAS_KEY})
  AND NOT EXISTS (SELECT 1 FROM deliveries e WHERE e.deliver_at > {{since}} AND e.source = 'messages'
                  AND e.queue = d.queue AND e.queue_offset = d.queue_offset)
ORDER BY deliver_at, queue, queue_offset
"""


def delayed(
    conf: Conf,
    topic: str | None = None,
    keys: str | None = None,
    storage_options: Options = None,
) -> list[dict[str, Any]]:
    """Delayed messages that have landed and wait for their time, the first due first; needs no Spark.

    Args:
        conf: the coordinator's configuration, the path of one, or its keys and values; `warehouse` and `catalog` count.
        topic: only with this destination.
        keys: only with this business key.
        storage_options: deltalake's.

    Returns:
        `COLUMNS` and `recall_handle`, which `DefaultMQProducer.recall` takes; `deliver_at` is an aware datetime, UTC.

    Raises:
        WarehouseError: there are no tables.
    """
    with opened(configuration.of(conf), storage_options) as tables:
        rows = waiting(tables, topic, keys).to_pylist()
    return [{**row, "recall_handle": encode_handle(recall_of(row))} for row in rows]


def waiting(tables: Tables, topic: str | None = None, keys: str | None = None) -> pa.Table:
    """The messages of `delayed`, with `COLUMNS` and without handles."""
    tables.open("delayed", "deliveries")
    return tables.rows(_WAITING.format(since=moment(now_ms() - DAY_MS)), topic=topic, keys=keys)


def recall_of(row: Mapping[str, Any]) -> RecallRecord:
    """The record that recalls the message of a row."""
    return RecallRecord(
        msg_id=row["message_id"], topic=row["topic"], message=Position(row["queue"], row["queue_offset"])
    )
