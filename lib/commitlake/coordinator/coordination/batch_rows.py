"""The messages of a batch's events, and the rows of the tables that the batch writes of them.

A message is read once, whole, with its event, for all tables. Of topics that show a name once, `duplicate_of` says
which message has shown it before; that is worked out before the commit point.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.dedup.dedup_index import DedupIndex, place_sql
from commitlake.protocol.states import Delivery, Event, Reason, Source, State
from commitlake.spark.frames import in_few_tasks, sized
from commitlake.tables import Warehouse
from commitlake.tables.columns import coordinate_sql, moment_sql, named_sql, or_null_sql
from commitlake.tables.spans import within

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


_EVENT = "struct(state, reason, op_queue, op_offset, op_stored, checks, repeat, round, deliver_at, now) AS e"
_EVENTS = (Event.DECIDED, Event.DELIVERY, Event.CHECK)


def halves(events: Events, cache: HalfCache) -> DataFrame:
    """The half messages that end, become visible or are checked: columns of `half`, `event` and `e.*`."""
    return _met(cache.at(events.spans(*_EVENTS)), events, Source.HALF)


def delayed(events: Events, warehouse: Warehouse) -> DataFrame:
    """The delayed messages whose delay ends: columns of `delayed`, `event` and `e.*`."""
    spans = events.spans(Event.DELIVERY, src=Source.MESSAGES)
    return _met(warehouse.read("delayed").where(within(spans, "queue", "queue_offset")), events, Source.MESSAGES)


def _met(messages: DataFrame, events: Events, src: Source) -> DataFrame:
    numbers = ", ".join(str(int(event)) for event in _EVENTS)
    found = events.frame.where(f"event IN ({numbers}) AND src = {int(src)}")
    found = found.selectExpr(f"{coordinate_sql('queue', 'offset')} AS at", "event", _EVENT)
    at = messages.selectExpr("*", f"{coordinate_sql('queue', 'queue_offset')} AS at")
    return in_few_tasks(at.join(sized(found, events.count(*_EVENTS, src=src)), "at"))


_RANK = f"INT(event = {int(Event.DELIVERY)})"
"""Decisions claim names before deliveries: a kill may come between the ledger rows of the two."""


def without_duplicates(messages: Mapping[Source, DataFrame], dedup: DedupIndex, now: int) -> dict[Source, DataFrame]:
    """Adds `duplicate_of`: the position of the message that holds the name; null if this one may be shown, or is not.

    Args:
        messages: by source, messages with their events.
        dedup: the topics that show a name once.
        now: the batch's time, ms since epoch, UTC.
    """
    found = _duplicates(messages, dedup, now) if dedup.topics else None
    if found is None:
        nothing = F.lit(None).cast("string")
        return {src: frame.withColumn("duplicate_of", nothing) for src, frame in messages.items()}
    return {
        src: frame.selectExpr("*", f"IF({SHOWN}, {_place(src)}, NULL) AS place").join(found, "place", "left")
        for src, frame in messages.items()
    }


def _duplicates(messages: Mapping[Source, DataFrame], dedup: DedupIndex, now: int) -> DataFrame | None:
    shown = [
        frame.where(SHOWN).selectExpr(
            *("topic", "keys", "message_id", f"{_place(src)} AS place"),
            f"greatest({now}L, unix_millis(stored_at)) AS at",
            f"{_RANK} AS rank",
            "0 AS member",
        )
        for src, frame in messages.items()
    ]
    return dedup.duplicates(reduce(DataFrame.unionAll, shown)) if shown else None


def _place(src: Source) -> str:
    return place_sql(f"'{src.name.lower()}'", "queue", "queue_offset")
