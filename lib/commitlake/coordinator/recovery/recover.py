"""The work of a start before any query runs: side by side, and from the tables alone."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.coordinator.coordination import batch_rows, check_requests
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import LandingPosition, PartialLanding
from commitlake.coordinator.recovery import rebuild, snapshot
from commitlake.errors import WarehouseError
from commitlake.kafka.throttled import Throttle
from commitlake.protocol.clock import BrokerClock, as_datetime
from commitlake.protocol.states import Source
from commitlake.spark.frames import checkpoint_now
from commitlake.tables import OF_BATCHES, Warehouse, topic_table
from commitlake.tables.columns import coordinate_sql
from commitlake.tables.spans import spans_of, within
from commitlake.tables.together import COPIED


class Recovered(NamedTuple):
    """The result of a recovery, with which a start goes on.

    Attributes:
        inputs: the table of inputs, with the open rows.
        last_batch: the newest batch_id, -1 when there is none.
        uncommitted: the records that a landing that was cut short has written, None when there are none.
    """

    inputs: InputTable
    last_batch: int
    uncommitted: PartialLanding | None


def of_new_warehouse(warehouse: Warehouse, place: str, clock: BrokerClock) -> Recovered:
    """The result for a new warehouse, in which there is nothing to read."""
    return Recovered(InputTable(warehouse.spark, place, clock), -1, None)


def recover(
    warehouse: Warehouse,
    config: Config,
    place: str,
    clock: BrokerClock,
    position: LandingPosition,
    topics: Collection[str],
) -> Recovered:
    """Completes the cut-short batch, makes inputs of the open rows, and finds the records of a cut-short landing.

    The inputs are a table at `place`. The position has an entry for each partition.
    """
    tables = [*positions.LANDED, *map(topic_table, topics)]
    with ThreadPoolExecutor(4) as pool:
        inputs = pool.submit(InputTable, warehouse.spark, place, clock)
        opened = pool.submit(open_rows, warehouse, config, position)
        uncommitted = pool.submit(positions.uncommitted, warehouse, position, tables)
        last = pool.submit(_complete_batch, warehouse, config, clock, position.landing_id)
        return Recovered(inputs.result().open(opened.result()), last.result(), uncommitted.result())


def _complete_batch(warehouse: Warehouse, config: Config, clock: BrokerClock, landing_id: int) -> int:
    last = complete_last_batch(warehouse, clock, landing_id)
    resend_checks(warehouse, config)
    return last


def open_rows(warehouse: Warehouse, config: Config, position: LandingPosition) -> DataFrame:
    """The open rows, by a session that can join all records since the newest saved rows."""
    timing = config.transaction
    since = snapshot.newest(warehouse, timing)
    own = rebuild.session_for(warehouse, config, since, position)
    return rebuild.open_rows(Warehouse(own, config.warehouse), timing, since)


_REPEAT = "coalesce(repeat, 0) AS repeat"  # version 0.1 had none
_SHOWN = ["source", "source_queue", "source_offset"]
_FIRST = ["first_queue", "first_offset", "transaction_id", "producer_group"]


def complete_last_batch(warehouse: Warehouse, clock: BrokerClock, landing_id: int) -> int:
    """Completes the newest batch; returns its batch_id, -1 when there was none yet.

    The landing `landing_id` is the newest complete one.

    A batch is complete when it stands in `batches`. If it does not, its ledger rows are still final: missing rows of
    messages that became visible, or were discarded, are written now. Refusals and checks need no completion: an op or
    a transaction without such a row is still open.
    """
    complete = warehouse.newest_batch()
    last = _newest_after(warehouse, complete)
    if last is None:
        return complete
    ended = warehouse.rows("transactions").where(F.col("batch_id") == last)
    delivered = warehouse.rows("deliveries").where(F.col("batch_id") == last)
    _complete_topics(warehouse, clock, ended, delivered, last)
    shown_at = clock.onward_ms()
    _complete_discarded(warehouse, ended, last)
    row = {"batch_id": last, "completed_at": as_datetime(shown_at), "landing_id": landing_id}
    warehouse.add([row], "batches", {"batch_id": last})
    return last


def _newest_after(warehouse: Warehouse, complete: int) -> int | None:
    """The newest batch with rows, None when that is the complete one. Files of older batches are not read."""
    later = [warehouse.rows(table).where(F.col("batch_id") > complete).select("batch_id") for table in OF_BATCHES]
    found = sorted(row["batch_id"] for row in reduce(DataFrame.unionAll, later).distinct().collect())
    if len(found) > 1:
        msg = f"batches ends with {complete}, and the ledger has {found[0]} to {found[-1]}: {COPIED}"
        raise WarehouseError(msg)
    return found[0] if found else None


def _complete_topics(
    warehouse: Warehouse, clock: BrokerClock, ended: DataFrame, delivered: DataFrame, batch_id: int
) -> None:
    shown = {
        Source.HALF: _shown(delivered, Source.HALF).union(
            ended.where(batch_rows.SHOWN_AT_ONCE).select("queue", "half_offset", "topic", "deliver_at")
        ),
        Source.MESSAGES: _shown(delivered, Source.MESSAGES),
    }
    topics = sorted({row["topic"] for each in shown.values() for row in each.select("topic").distinct().collect()})
    if not topics:
        return
    frames = [
        batch_rows.topic_rows(_at(warehouse.rows(table), shown[src]), src, batch_id, "due_at")
        for src, table in ((Source.HALF, "half"), (Source.MESSAGES, "delayed"))
    ]
    warehouse.add_topics(topics)  # a listed topic whose table is gone is reported below
    warehouse.guard.fence(topics)
    there = [
        warehouse.rows(topic_table(topic))
        .where(F.col("batch_id") == batch_id)
        .select(F.lit(topic).alias("topic"), *_SHOWN)
        for topic in topics
    ]
    missing = reduce(DataFrame.union, frames).join(reduce(DataFrame.union, there), ["topic", *_SHOWN], "left_anti")
    warehouse.append_to_topics(missing, topics, {"batch_id": batch_id}, clock.onward_ms)


def _shown(delivered: DataFrame, src: Source) -> DataFrame:
    """Place, topic and due time of the messages that these rows of `deliveries` made visible."""
    of_source = delivered.where((F.col("state") == "DELIVERED") & (F.col("source") == src.name.lower()))
    return of_source.select("queue", "queue_offset", "topic", "deliver_at")


def _at(messages: DataFrame, places: DataFrame) -> DataFrame:
    """The messages at some places, with their due times; bodies of others are not read."""
    at = places.toDF("queue", "queue_offset", "topic", "due_at").drop("topic")
    near = messages.where(within(spans_of(at, "queue", "queue_offset"), "queue", "queue_offset"))
    return near.join(F.broadcast(at), ["queue", "queue_offset"])


def _complete_discarded(warehouse: Warehouse, ended: DataFrame, batch_id: int) -> None:
    discarded, at = ended.where("state = 'DISCARDED'"), f"{coordinate_sql('queue', 'queue_offset')} AS at"
    ends = discarded.selectExpr(
        f"{coordinate_sql('queue', 'half_offset')} AS at",
        *("reason", "checks", "round", "resolved_at AS discarded_at", "batch_id"),
    )
    there = warehouse.rows("discarded").where(F.col("batch_id") == batch_id).selectExpr(at)
    missing = ends.join(there, "at", "left_anti")
    if missing.isEmpty():
        return
    near = warehouse.rows("half").where(within(spans_of(discarded, "queue", "half_offset"), "queue", "queue_offset"))
    half = near.selectExpr("*", at)
    warehouse.append(half.join(F.broadcast(missing), "at"), "discarded", {"batch_id": batch_id})


def resend_checks(warehouse: Warehouse, config: Config) -> None:
    """Sends the newest checks again: after a kill before their send, a producer would stay unasked for an interval.

    When they can't be sent, the start goes on: it needs none of them, and would fail each time.
    """
    if not warehouse.has_grown("checks"):
        return
    checks = warehouse.read("checks")
    last = checks.agg(F.max("batch_id")).collect()[0][0]
    if last is None:
        return
    newest = checkpoint_now(checks.where(F.col("batch_id") == last))
    spans = spans_of(newest, "queue", "half_offset")
    ended = warehouse.rows("transactions").where(within(spans, "queue", "half_offset"))
    asked = checkpoint_now(newest.join(ended, ["queue", "half_offset", "round"], "left_anti"))
    if asked.isEmpty():
        return
    half = warehouse.rows("half").where(within(spans, "queue", "queue_offset"))
    checked = half.join(
        F.broadcast(asked.selectExpr("queue", "half_offset AS queue_offset", "round", "check_no", _REPEAT)),
        ["queue", "queue_offset"],
    )
    # A part of another transaction id or group is an ORPHAN.
    firsts = asked.withColumnsRenamed({"queue": "first_queue", "half_offset": "first_offset"}).select(*_FIRST)
    near = warehouse.rows("half").where(within(spans, "first_queue", "first_offset"))
    parts = near.join(F.broadcast(firsts), _FIRST).where("queue != first_queue OR queue_offset != first_offset")
    parts = parts.select("first_queue", "first_offset", "queue", "queue_offset")
    check_requests.send(config, checked, parts, Throttle())
