"""Erases what messages say, wherever it stands: bodies, properties and keys go; ids, offsets and states stay.

So counts, cursors and the audit hold. Each table is updated by its own rows, the topic's last: after a kill the same
command finds the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.config.object_store import storage_options
from commitlake.errors import WarehouseError
from commitlake.protocol import headers
from commitlake.protocol.clock import as_datetime
from commitlake.protocol.durations import duration_text
from commitlake.protocol.kafka_topics import CHECK, HALF, MESSAGES
from commitlake.reading.questions.tables import escaped
from commitlake.tables import Warehouse, topic_table
from commitlake.tables.typed_topics import ERROR, VALUE
from commitlake.tools.audit import ledger
from commitlake.tools.audit.audit_rules import until

ERASED = "erased_at"
"""The one property of an erased message: when it was erased."""
_IS_ERASED = f"body IS NULL AND keys IS NULL AND map_keys(properties) = array('{ERASED}')"
_TABLES = ("discarded", "delayed", "half")
_PLACE = ["queue", "queue_offset"]
_IDS = 10_000
_KEPT = sorted(headers.PROTOCOL_HEADERS - {headers.TAGS, headers.KEYS})
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class ToErase(NamedTuple):
    """The messages to erase: of a topic, those with a business key, or those for which SQL on their columns holds."""

    topic: str
    keys: str | None
    where: str | None

    def of(self, table: DataFrame) -> DataFrame:
        """The rows that hold such messages and are not erased."""
        return table.where(self.condition(table))

    def condition(self, table: DataFrame) -> Column:
        """Whether a row holds such a message, and is not erased."""
        chosen = F.expr(self.where) if self.where is not None else _has_key(F.col("keys"), str(self.keys))
        of_topic = F.col("topic") == self.topic if "topic" in table.columns else F.lit(True)
        return of_topic & F.coalesce(chosen, F.lit(False)) & ~F.coalesce(F.expr(_IS_ERASED), F.lit(False))

    def rejected(self) -> Column:
        """Whether a row of `rejected` holds such a record: by its header, or by the text of a batch, with the key."""
        if self.keys is None:
            return F.lit(False)
        topic, keys = (F.col("headers")[name].cast("string") for name in (headers.REAL_TOPIC, headers.KEYS))
        text, as_json = F.col("value").cast("string"), json.dumps(self.keys)[1:-1]  # a batch is ASCII
        in_batch = F.col("headers")[headers.BATCH].isNotNull() & (text.contains(self.keys) | text.contains(as_json))
        has_key = F.coalesce(_has_key(keys, self.keys), F.lit(False)) | in_batch
        return (topic == self.topic) & has_key & F.col("value").isNotNull()


def _has_key(keys: Column, key: str) -> Column:
    return F.array_contains(F.split(keys, " "), key) | (keys == key)


def found(tables: Warehouse, wanted: ToErase) -> dict[str, int]:
    """How many rows of each table would be erased.

    Raises:
        WarehouseError: a message is open, or waits for its time: it would be shown without its content.
    """
    _refuse_open(tables, wanted)
    counts = {name: wanted.of(tables.read(name)).count() for name in _tables(tables, wanted)}
    return {**counts, "rejected": tables.read("rejected").where(wanted.rejected()).count()}


def erase(tables: Warehouse, receipts: str, wanted: ToErase, at_ms: int, remark: str) -> dict[str, int]:
    """Erases the messages in all tables, on which no coordinator runs, and returns how many rows of each.

    The table of receipts need not be there. The remark, why, is kept in the history of each table.

    Raises:
        WarehouseError: as of `found`.
    """
    counts = found(tables, wanted)
    nothing: dict[str, str | Column] = {name: F.lit(None) for name in ("keys", "sharding_key", "body")}
    at = as_datetime(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    erased = nothing | {"properties": F.create_map(F.lit(ERASED), F.lit(at))}
    bare: dict[str, str | Column] = {name: F.lit(None) for name in ("key", "value")}
    bare["headers"] = F.map_filter("headers", lambda name, _: name.isin(_KEPT))
    with _told(tables, remark):
        counts["receipts"] = _erase_receipts(tables, receipts, wanted)
        tables.table("rejected").update(wanted.rejected(), bare)
        for name in _tables(tables, wanted):
            if name not in _TABLES:
                tables.allow_changes(wanted.topic)
            rows = tables.read(name)
            typed: dict[str, str | Column] = {each: F.lit(None) for each in (VALUE, ERROR) if each in rows.columns}
            tables.table(name).update(wanted.condition(rows), erased | typed)
    return counts


def remains(config: Config, wanted: ToErase) -> str:
    """Where the bytes still are, and until when: what to tell the one who asked."""
    keep = config.maintenance
    tables = duration_text(keep.file_retention_ms), duration_text(keep.topic_file_retention_ms)
    names = [config.kafka.topic(name) for name in (HALF, MESSAGES, CHECK)]
    if target := config.topics.to_kafka.get(wanted.topic):
        names.append(target)
    forgotten = ", and topics.dedup no longer knows their names" if wanted.topic in config.topics.dedup else ""
    log = " The log of the topic's table has the least and greatest value of its first fields, for 30 days."
    logged = log if wanted.topic in config.topics.schemas else ""
    return (
        f"erased{forgotten}. Replaced files stay until maintenance removes them: {tables[1]} for the topic's table, "
        f"{tables[0]} for the others, and a quarter longer.{logged} Kafka has the records until its retention ends, in "
        f"{', '.join(names)}; backups, and readers' own copies, are yours to find"
    )


def _tables(tables: Warehouse, wanted: ToErase) -> list[str]:
    topic = topic_table(wanted.topic)
    return [*_TABLES, *([topic] if tables.holds(topic) else [])]


def _refuse_open(tables: Warehouse, wanted: ToErase) -> None:
    half, delayed = (wanted.of(tables.read(name)) for name in ("half", "delayed"))
    pending = ledger.pending(tables.spark, tables.root).selectExpr(
        "queue AS first_queue", "queue_offset AS first_offset"
    )
    delivered = until(tables.read("deliveries"), tables.newest_batch()).select("source", *_PLACE)
    shown_later = tables.read("transactions").where("deliver_at IS NOT NULL")
    waiting = half.join(shown_later.selectExpr("queue", "half_offset AS queue_offset"), _PLACE, "left_semi")
    opened = {
        "open": half.join(pending, ["first_queue", "first_offset"], "left_semi"),
        "waiting": waiting.join(delivered.where("source = 'half'"), _PLACE, "left_anti"),
        "delayed": delayed.join(delivered.where("source = 'messages'"), _PLACE, "left_anti"),
    }
    for what, rows in opened.items():
        ids = [row[0] for row in rows.select("message_id").limit(5).collect()]
        if ids:
            msg = (
                f"messages of {wanted.topic} that would be erased are {what}: {', '.join(ids)}; end them first, with "
                "`commitlake tx commit` or `tx rollback`, or `commitlake recall`"
            )
            raise WarehouseError(msg)


def _erase_receipts(tables: Warehouse, place: str, wanted: ToErase) -> int:
    """Erases keys and remarks of the receipts, which only deltalake writes; returns how many.

    With a business key, by the key that a receipt has itself; else by the ids of the topic's rows.
    """
    if not DeltaTable.is_deltatable(place, storage_options(None)):
        return 0
    table, count = DeltaTable(place, storage_options=storage_options(None)), 0
    for which in _receipts_of(tables, wanted):
        found = f"topic = '{escaped(wanted.topic)}' AND {which} AND (keys IS NOT NULL OR remark IS NOT NULL)"
        count += int(table.update({"keys": "NULL", "remark": "NULL"}, predicate=found)["num_updated_rows"])
    return count


def _receipts_of(tables: Warehouse, wanted: ToErase) -> Iterator[str]:
    if wanted.keys is not None:
        key = escaped(wanted.keys)
        yield f"(keys = '{key}' OR array_has(string_to_array(keys, ' '), '{key}'))"
    elif tables.holds(topic := topic_table(wanted.topic)):
        ids = [f"'{escaped(row[0])}'" for row in wanted.of(tables.read(topic)).select("message_id").collect()]
        for at in range(0, len(ids), _IDS):
            yield f"message_id IN ({', '.join(ids[at : at + _IDS])})"


@contextmanager
def _told(tables: Warehouse, remark: str) -> Iterator[None]:
    """Commits in the block have the remark in their history."""
    tables.spark.conf.set(_USER_METADATA, json.dumps({"erased": remark}))
    try:
        yield
    finally:
        tables.spark.conf.unset(_USER_METADATA)
