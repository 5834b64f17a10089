"""Reads committed messages and writes receipts with Spark: `commitlake.read_topic` and `commitlake.receipts`."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake import config as configuration
from commitlake.clients.consumer import missing
from commitlake.clients.consumer.arguments import Tags, checked_group, tags_of
from commitlake.clients.consumer.receipts import Attempt, Receipt, Receipts, table_of
from commitlake.clients.consumer.rows import RECEIPT_COLUMNS
from commitlake.clients.renamed import warn_user
from commitlake.errors import ArgumentError, NoTableError
from commitlake.protocol.clock import now_ms
from commitlake.reading.table import Options
from commitlake.tables import Warehouse, topic_table

LAST_COMPLETE = "last complete batch"
_LANDING = "landing_id"
Conf = configuration.Conf


def read_topic(
    spark: SparkSession,
    conf: Conf,
    topic: str,
    *,
    up_to: int | str | None = None,
    tags: Tags | None = None,
    from_time: datetime | None = None,
    stream: bool = False,
) -> DataFrame:
    """Read the committed messages of a topic, with the columns of a topic table.

    Args:
        spark: a session with Delta, also one of Spark Connect.
        conf: the coordinator's configuration, its path, or its keys and values; `warehouse` counts.
        topic: the topic.
        up_to: the last batch_id to read, at which several topics are at one point and stay there; it has the normal
            messages of landings that were complete by then. Or `last complete batch`, with all normal messages.
        tags: a tag, tags joined by `||`, or a list of tags; None or `*` for all.
        from_time: only rows that became visible at this time or later.
        stream: return a stream, in which each row comes once.

    Raises:
        ArgumentError: `up_to` is neither of these, or is given for a stream, which has no end.
        NoTableError: the topic has no table. Spark Connect raises Spark's own error, when the rows are read.
    """
    _check_up_to(up_to, stream=stream)
    warehouse = Warehouse(spark, configuration.of(conf).warehouse)
    name = topic_table(topic)
    try:
        point = None if up_to is None else _point(warehouse, up_to)  # first, so that the rows are not older
        rows = warehouse.stream(name) if stream else warehouse.read(name)
    except NoTableError:
        raise NoTableError(missing.told(f"{warehouse.root}/{name.path}")) from None
    if point is not None:
        rows = rows.where(_until(rows, *point))
    wanted = tags_of(tags)
    if wanted is not None:
        rows = rows.where(F.col("tags").isin(wanted))
    return rows if from_time is None else rows.where(F.col("visible_at") >= F.lit(from_time))


def _point(warehouse: Warehouse, up_to: int | str) -> tuple[int, int | None]:
    """A batch and the landing that was complete with it; None for `last complete batch`, and for all landings."""
    if up_to == LAST_COMPLETE:
        return warehouse.newest_batch(), None
    batches = warehouse.read("batches").where(F.col("batch_id") <= int(up_to))
    if _LANDING not in batches.columns:  # an older version has written the warehouse
        return int(up_to), None
    return int(up_to), batches.agg(F.coalesce(F.max(_LANDING), F.lit(-1))).collect()[0][0]


def _until(rows: DataFrame, batch_id: int, landing_id: int | None) -> Column:
    """The rows of a topic up to a point; normal messages of an older version are before each."""
    is_normal = F.col("batch_id").isNull()
    if landing_id is not None and _LANDING in rows.columns:
        is_normal &= F.coalesce(_LANDING, F.lit(-1)) <= landing_id
    return is_normal | (F.col("batch_id") <= batch_id)


def _check_up_to(up_to: int | str | None, *, stream: bool) -> None:
    if stream and up_to is not None:
        msg = f"up_to: {up_to!r} is not allowed with stream=True; a stream goes on, read a batch instead"
        raise ArgumentError(msg)
    if isinstance(up_to, str) and up_to != LAST_COMPLETE and not up_to.isdecimal():
        msg = f"up_to: {up_to!r} is not allowed; give a batch_id, or {LAST_COMPLETE!r}"
        raise ArgumentError(msg)


class SparkReceipts:
    """Writes a group's receipts from `foreachBatch`, into the same table as consumers without Spark.

    A repeated micro-batch writes its receipts again, which changes no answer.
    """

    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts

    def done(self, messages: DataFrame, remark: str | None = None) -> None:
        """Note that the group has finished its work on these rows of the topic. The bodies stay in Spark."""
        self._write(messages, "DONE", remark)

    def dead(self, messages: DataFrame, remark: str | None = None) -> None:
        """Note that the group gives up on these rows, which become its dead letters."""
        self._write(messages, "DEAD", remark)

    def _write(self, messages: DataFrame, state: str, remark: str | None) -> None:
        taken = messages.select(*RECEIPT_COLUMNS).toArrow()
        if taken.num_rows:
            one = Receipt(taken, range(taken.num_rows), Attempt(state, 1, 0, None, remark, now_ms()))
            self._receipts.append(table_of([(self._receipts, [one])]))


def receipts(conf: Conf, topic: str, *former: str, group: str = "", storage_options: Options = None) -> SparkReceipts:
    """Return a writer of receipts for a group that reads a topic with Spark. The driver writes them, without Spark.

    Args:
        conf: the coordinator's configuration, its path, or its keys and values; `receipts` counts.
        topic: the topic.
        former: the rest of the former order (spark, conf, group, topic), which version 0.4 will not take.
        group: the group of consumers.
        storage_options: deltalake's options for object stores.

    Raises:
        ArgumentError: the group has no name, or not its own one.
    """
    if former:
        if len(former) != 2 or group:
            msg = f"receipts: {former!r:.100} is too much; write commitlake.receipts(conf, topic, group=...)"
            raise ArgumentError(msg)
        warn_user("write commitlake.receipts(conf, topic, group=...) now", DeprecationWarning)
        conf, (group, topic) = topic, former
    place, name = f"{configuration.of(conf).receipts_place}/receipts", checked_group(group)
    return SparkReceipts(Receipts(place, name, topic, storage_options))
