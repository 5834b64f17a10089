"""Rows of the tables that a batch writes, of its events and of the messages that these are about (`event_messages`)."""

from __future__ import annotations

from pyspark.sql import DataFrame

from commitlake.protocol.states import Delivery, Event, Reason, Source, State
from commitlake.tables.columns import moment_sql, named_sql, or_null_sql

_ENDED_AT = f"greatest({moment_sql('e.now')}, stored_at)"
"""The driver's clock may run behind the broker's; nothing ends before it was stored."""

SHOWN_AT_ONCE = "state = 'COMMITTED' AND deliver_at IS NULL AND duplicate_of IS NULL"
"""Rows of `transactions` whose half messages are visible from their batch on."""

SINCE = "since_ms"
"""A column of the rows of `transactions` and `deliveries` that no table has: from when a message could be visible."""

_TEXTS = "concat_ws('', tags, keys, map_keys(properties), map_values(properties))"
_BYTES = f"octet_length({_TEXTS}) + coalesce(octet_length(body), 0) + coalesce(octet_length(sharding_key), 0) AS bytes"
"""A column that no table has: the bytes of the message, wherever it goes."""
_TRANSACTION = [
    "queue",
    "queue_offset AS half_offset",
    *("transaction_id", "message_id", "producer_group", "topic"),
    f"{named_sql(State, 'e.state')} AS state",
    f"{named_sql(Reason, 'e.reason')} AS reason",
    f"{or_null_sql('e.op_queue')} AS op_queue",
    f"{or_null_sql('e.op_offset')} AS op_offset",
    *("e.checks", "e.round"),
    f"{moment_sql('e.deliver_at')} AS deliver_at",
    "duplicate_of",
    "stored_at",
    f"{_ENDED_AT} AS resolved_at",
    f"greatest(e.op_stored, unix_millis(stored_at)) AS {SINCE}",
    _BYTES,
]
_DELIVERY = [
    *("queue", "queue_offset", "message_id", "topic"),
    f"IF(duplicate_of IS NULL, {named_sql(Delivery, 'e.state')}, '{Delivery.DUPLICATE.name}') AS state",
    "duplicate_of",
    f"{moment_sql('e.deliver_at')} AS deliver_at",
    f"{_ENDED_AT} AS resolved_at",
    f"greatest(e.deliver_at, unix_millis(stored_at)) AS {SINCE}",
    _BYTES,
]
_DISCARDED = [
    f"{named_sql(Reason, 'e.reason')} AS reason",
    *("e.checks", "e.round"),
    f"{_ENDED_AT} AS discarded_at",
]
_CHECK = [
    "queue",
    "queue_offset AS half_offset",
    *("transaction_id", "producer_group", "e.round"),
    *("e.checks AS check_no", "e.repeat"),
    f"{moment_sql('e.now')} AS requested_at",
]


def transactions(halves: DataFrame, batch_id: int) -> DataFrame:
    """Rows of `transactions`: one for each half message that reached its end."""
    return halves.where(f"event = {int(Event.DECIDED)}").selectExpr(*_TRANSACTION, _batch(batch_id))


def deliveries(messages: DataFrame, src: Source, batch_id: int) -> DataFrame:
    """Rows of `deliveries`: one for each message with a delay that reached its end."""
    ended = messages.where(f"event = {int(Event.DELIVERY)}")
    return ended.selectExpr(*_DELIVERY, f"'{src.name.lower()}' AS source", _batch(batch_id))


def discarded(halves: DataFrame, columns: list[str], batch_id: int) -> DataFrame:
    """Rows of `discarded`: the discarded half messages, whole."""
    found = halves.where(f"event = {int(Event.DECIDED)} AND e.state = {int(State.DISCARDED)}")
    return found.selectExpr(*columns, *_DISCARDED, _batch(batch_id))


def checks(halves: DataFrame, batch_id: int) -> DataFrame:
    """Rows of `checks`: one for each check request, a repeated one too."""
    return halves.where(f"event = {int(Event.CHECK)}").selectExpr(*_CHECK, _batch(batch_id))


def _batch(batch_id: int) -> str:
    return f"{batch_id}L AS batch_id"


SHOWN = (
    f"(event = {int(Event.DELIVERY)} AND e.state = {int(Delivery.DELIVERED)}) OR "
    f"(event = {int(Event.DECIDED)} AND e.state = {int(State.COMMITTED)} AND e.deliver_at < 0)"
)
"""SQL on messages with their events: whether a message becomes visible now."""


def topic_rows(messages: DataFrame, src: Source, batch_id: int, due: str = moment_sql("e.deliver_at")) -> DataFrame:
    """Messages as rows of topic tables, without `visible_at`. No body becomes an object of Python.

    `due` is SQL of a message's due time, null without a delay; by default that of its event.
    """
    return messages.selectExpr(
        *("topic", "queue_id", "message_id"),
        "transaction_id" if src is Source.HALF else "CAST(NULL AS STRING) AS transaction_id",
        *("producer_group", "tags", "keys", "properties", "sharding_key", "body"),
        f"'{src.name.lower()}' AS source",
        *("queue AS source_queue", "queue_offset AS source_offset", "0 AS source_index", "born_at", "stored_at"),
        f"{due} AS due_at",
        *(f"{batch_id}L AS batch_id", "CAST(NULL AS BIGINT) AS landing_id"),
    )
