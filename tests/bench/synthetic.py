"""Writes the tables that a long-lived coordinator would have left, by Spark and without Kafka: 20 M rows in minutes.

    .venv/bin/python -m tests.bench.synthetic --warehouse DIRECTORY --decided 20000000 --open 10000

1 000 transactions a second over four queues, the last of them now, all of one topic; a batch a second decides those of
the second before, eight of nine as COMMITTED. The newest ones are open. Bodies have 64 bytes, ids 32.
"""

from __future__ import annotations

import argparse
import json
import time

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake import config
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.recovery import rebuild, snapshot
from commitlake.spark import session
from commitlake.tables import Warehouse, topic_table

QUEUES = 4
TOPIC = "orders"
BODY_BYTES = 64
_MS_APART = 4  # of two half messages of one queue
_BATCH = 250  # half messages of one queue that a batch decides
_MONTH_MS = 30 * 86_400_000
_TASK = 500_000  # rows; a task's file holds neighbours of one queue, as after OPTIMIZE


def main() -> None:
    """Fills an empty warehouse; in a process of its own its memory is free again for what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", required=True)
    parser.add_argument("--decided", type=int, default=0, help="transactions with an end")
    parser.add_argument("--open", type=int, default=0, help="transactions without an end")
    parser.add_argument("--waiting", type=int, default=0, help="delayed messages that are due in a month")
    parser.add_argument("--file-rows", type=int, default=_TASK, help="rows of a file")
    parser.add_argument("--topics", type=int, default=1, help="topics that have all committed rows each")
    parser.add_argument("--hours-ago", type=int, default=0, help="when the newest transaction came")
    given = parser.parse_args()
    spark = session.build(app_name="bench-synthetic")
    session.apply_settings(spark, more=session.MAINTENANCE_SETTINGS)
    warehouse = Warehouse(spark, given.warehouse)
    if given.waiting:
        offsets = fill_delayed(warehouse, given.waiting)
    else:
        offsets = fill(warehouse, given)
        session.apply_settings(spark, more=session.HISTORY_SETTINGS)  # as maintenance does
        save_snapshot(warehouse)
    spark.stop()
    print(json.dumps({"offsets": offsets}), flush=True)


def fill(warehouse: Warehouse, given: argparse.Namespace) -> int:
    """Fills an empty warehouse with transactions that ended and some that did not, as one history.

    Returns the next offset of each queue.

    Args:
        warehouse: without rows; its tables are created here.
        given: the command line. `decided` is rounded down to whole batches, so to a multiple of 1 000, and `open`, the
            newest ones, to a multiple of `QUEUES`.
    """
    warehouse.create()
    batches: int = given.decided // (_BATCH * QUEUES)
    ended = batches * _BATCH
    every: int = ended + given.open // QUEUES
    begun = F.lit(time.time_ns() // 1_000_000 - given.hours_ago * 3_600_000 - every * _MS_APART)
    halves = _half(_places(warehouse, every, given.file_rows), begun)
    done = _half(_places(warehouse, ended, given.file_rows), begun).withColumns(_end(begun))
    committed = done.where("state = 'COMMITTED'")
    warehouse.append(halves, "half")
    warehouse.append(_op(done), "op")
    _land(warehouse, every)
    warehouse.append(done.withColumn("half_offset", F.col("queue_offset")), "transactions")
    for topic in [TOPIC, *(f"{TOPIC}{number}" for number in range(1, given.topics))]:
        warehouse.ensure_topic(topic)
        warehouse.append(_visible(committed), topic_table(topic))
    numbers = warehouse.spark.range(0, batches, 1, 1).select(F.col("id").alias("batch_id"))
    done_at = {"completed_at": _batch_time(begun), "landing_id": F.lit(1)}
    warehouse.append(numbers.withColumns(done_at), "batches")
    epoch = warehouse.spark.sql("SELECT 1 AS epoch, 'bench' AS host, 1 AS pid, 'bench' AS version, NULL AS contract")
    warehouse.append(epoch.withColumn("started_at", F.timestamp_millis(begun)), "epochs")
    return every


def save_snapshot(warehouse: Warehouse) -> None:
    """As maintenance does, every 10 minutes; a start measured without the saved rows is another start."""
    timing = config.load(None).transaction
    rebuild.save_snapshot(warehouse, timing)
    if snapshot.newest(warehouse, timing).rows is None:
        raise SystemExit("the open rows were not saved: the history ends at no point from which a start can look")


def fill_delayed(warehouse: Warehouse, count: int) -> int:
    """Fills an empty warehouse with `count` delayed messages that wait; rounded down to a multiple of `QUEUES`.

    Returns the next offset of each queue.
    """
    warehouse.create()
    warehouse.ensure_topic(TOPIC)
    begun = F.lit(time.time_ns() // 1_000_000)
    rows = _half(_places(warehouse, count // QUEUES), begun).withColumns(
        {"stored_at": F.timestamp_millis(begun), "deliver_at": F.timestamp_millis(begun + _MONTH_MS)}
    )
    warehouse.append(rows, "delayed")
    _land(warehouse, count // QUEUES)
    return count // QUEUES


def _land(warehouse: Warehouse, offsets: int) -> None:
    """The position of a landing that brought as many offsets of each queue."""
    ends = {(source, queue): offsets for source in ("half", "op", "messages") for queue in range(QUEUES)}
    positions.append(warehouse, LandingPosition(1, ends))


def _places(warehouse: Warehouse, offsets: int, file_rows: int = _TASK) -> DataFrame:
    """The first `offsets` places of each queue; neighbours are in one task, so nothing is shuffled."""
    numbers = warehouse.spark.range(0, QUEUES * offsets, 1, max(QUEUES, QUEUES * offsets // file_rows))
    return numbers.select(
        F.expr(f"CAST(id DIV {max(offsets, 1)} AS INT)").alias("queue"),
        (F.col("id") % max(offsets, 1)).alias("queue_offset"),
    )


def _nth() -> Column:
    """Which half message of its queue it is."""
    return F.col("queue_offset")


def _half(places: DataFrame, begun: Column) -> DataFrame:
    number = _nth() * QUEUES + F.col("queue")
    # Ids of many producers come in no order.
    name, message = (F.upper(F.md5(F.concat(number, F.lit(kind)))) for kind in "tm")
    stored = F.timestamp_millis(begun + _nth() * _MS_APART)
    return places.select(
        *("queue", "queue_offset", name.alias("transaction_id"), message.alias("message_id")),
        F.lit("order-service").alias("producer_group"),
        F.lit(TOPIC).alias("topic"),
        F.col("queue").alias("queue_id"),
        F.lit("new").alias("tags"),
        F.concat(F.lit("order-"), F.hash(number)).alias("keys"),
        F.create_map(F.lit("region"), F.lit("Zürich")).alias("properties"),
        F.lit(None).alias("sharding_key"),
        F.rpad(F.concat(F.lit('{"order":'), number, F.lit("}")), BODY_BYTES, " ").cast("binary").alias("body"),
        F.col("queue").alias("first_queue"),
        F.col("queue_offset").alias("first_offset"),
        *[F.lit(None).alias(absent) for absent in ("check_immunity_s", "delay_ms", "deliver_at")],
        stored.alias("born_at"),
        stored.alias("stored_at"),
    )


def _end(begun: Column) -> dict[str, Column]:
    """How each half message ended: by the op that stands at the same place in `op`."""
    batch = F.floor(_nth() / _BATCH)
    return {
        "state": F.when(_nth() % 9 == F.col("queue_id"), "ROLLED_BACK").otherwise("COMMITTED"),
        "reason": F.lit("DIRECT"),
        "op_queue": F.col("queue"),
        "op_offset": F.col("queue_offset"),
        "duplicate_of": F.lit(None),
        "checks": F.lit(0),
        "round": F.lit(0),
        "batch_id": batch,
        "resolved_at": _batch_time(begun, batch),
    }


def _batch_time(begun: Column, batch: Column | None = None) -> Column:
    """A second after the last of its half messages was stored."""
    number = F.col("batch_id") if batch is None else batch
    return F.timestamp_millis(begun + (number + 1) * (_BATCH * _MS_APART) + 1_000)


def _op(done: DataFrame) -> DataFrame:
    return done.select(
        *("queue", "op_offset", F.lit(False).alias("admin"), "transaction_id", "producer_group"),
        F.when(F.col("state") == "COMMITTED", "COMMIT").otherwise("ROLLBACK").alias("decision"),
        F.array(F.struct("queue", F.col("queue_offset").alias("offset"))).alias("half_messages"),
        *[F.lit(None).alias(absent) for absent in ("message_id", "topic", "check_id", "remark")],
        F.lit(False).alias("from_check"),
        (F.col("stored_at") + F.expr("INTERVAL 10 MILLISECONDS")).alias("stored_at"),
    )


def _visible(committed: DataFrame) -> DataFrame:
    return committed.withColumns(
        {
            "source": F.lit("half"),
            "source_queue": F.col("queue"),
            "source_offset": F.col("queue_offset"),
            "source_index": F.lit(0),
            "due_at": F.lit(None),
            "visible_at": F.col("resolved_at"),
            "landing_id": F.lit(None),
        }
    )


if __name__ == "__main__":
    main()
