"""Delayed messages: how late they come, how long a burst takes, and what it costs that others wait.

    .venv/bin/python -m tests.bench.delays error --rate 1000 --seconds 60
    .venv/bin/python -m tests.bench.delays burst --messages 1000000
    .venv/bin/python -m tests.bench.delays waiting --messages 10000000

A message is visible when the commit that holds it is: its time is that of the commit's file.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from deltalake import DeltaTable
from kafka import KafkaProducer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from tests.bench import load
from tests.bench.latency import describe, latencies

from commitlake import config
from commitlake.config import Config
from commitlake.coordination import query
from commitlake.coordination.commit import BatchWriter
from commitlake.coordinator import Coordinator
from commitlake.kafka import topics
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.recovery import rebuild
from commitlake.spark import session
from commitlake.tables import Warehouse

TOPIC = "reminders"
QUEUES = 4
DELAY_MS = 10_000
WARM_UP_S = 60
_TICK_S = 0.05
_FAR_MS = 30 * 86_400_000
_STATE_TIMES = ("allUpdatesTimeMs", "commitTimeMs")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["error", "burst", "waiting"])
    parser.add_argument("--rate", type=int, default=1_000, help="error: messages due a second")
    parser.add_argument("--seconds", type=int, default=60, help="error: how long, after a minute of warming up")
    parser.add_argument("--messages", type=int, default=1_000_000, help="burst: due in one second; waiting: as many")
    parser.add_argument("--lead", type=int, default=120, help="burst: seconds from sending to the due second")
    parser.add_argument("--ending", type=int, default=0, help="waiting: how many of them are due a second")
    parser.add_argument("--scattered", action="store_true", help="waiting: due in no order; else the oldest first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commitlake-bench-") as place:
        spark = session.build(app_name="delays")
        if given.what == "waiting":
            compare_waiting(spark, Path(place), given.messages, given.ending, given.scattered)
        else:
            with EmbeddedBroker(Path(place, "kafka")) as broker:
                conf = config.from_mapping(settings(Path(place), {"kafka.bootstrap_servers": broker.bootstrap_servers}))
                if given.what == "error":
                    measure_error(spark, conf, given.rate, given.seconds)
                else:
                    measure_burst(spark, conf, given.messages, given.lead)
        spark.stop()


def settings(place: Path, more: dict[str, object] | None = None) -> dict[str, object]:
    """A configuration below `place`."""
    return {"warehouse": str(place / "warehouse"), "checkpoints": str(place / "checkpoints"), **(more or {})}


class Steady:
    """Sends `rate` delayed messages a second until it is stopped."""

    def __init__(self, conf: Config, rate: int) -> None:
        self._conf, self._rate, self.sent = conf, rate, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Steady:
        """Starts it."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._conf.kafka.bootstrap_servers, acks="all", linger_ms=2)
        next_tick = time.monotonic()
        while not self._stop.is_set():
            for number in range(self.sent, self.sent + int(self._rate * _TICK_S)):
                told = {"REAL_TOPIC": TOPIC, "UNIQ_KEY": f"M{number:012d}", "TIMER_DELAY_MS": str(DELAY_MS)}
                headers = [(name, text.encode()) for name, text in told.items()]
                producer.send(
                    self._conf.kafka.topic("messages"), b"." * 256, headers=headers, partition=number % QUEUES
                )
            self.sent += int(self._rate * _TICK_S)
            next_tick += _TICK_S
            time.sleep(max(0.0, next_tick - time.monotonic()))
        producer.close()


def measure_error(spark: SparkSession, conf: Config, rate: int, seconds: int) -> None:
    """Messages come and fall due at a steady rate; those due after the warm-up count."""
    with Coordinator(spark, conf).start():
        with Steady(conf, rate) as running:
            begun = time.time() + WARM_UP_S
            time.sleep(WARM_UP_S + seconds)
        wait_for(lambda: visible(conf) == running.sent, 120)
    late = late_by(spark, conf, begun)
    print(f"{rate} due a second for {seconds} s: from due to visible {describe(late)}")


def measure_burst(spark: SparkSession, conf: Config, count: int, lead_s: int) -> None:
    """All fall due in one second, for which a running coordinator waits."""
    due = (int(time.time()) + lead_s) * 1_000
    topics.ensure_topics(conf)
    with Coordinator(spark, conf).start():
        found = load.transactions(spark, conf, count)
        load.send_delayed(found, conf, F.lit(due) + F.col("id") % 1_000, TOPIC)
        sent = time.time()
        place = f"{conf.warehouse}/delayed"
        wait_for(lambda: DeltaTable(place).count() == count, due / 1_000 - sent)
        print(f"{count:,} messages sent and landed {due / 1_000 - time.time():.0f} s before they are due", flush=True)
        wait_for(lambda: visible(conf) == count, lead_s + 300)
    late = late_by(spark, conf, 0)
    rows = spark.read.format("delta").load(table(conf)).select("source_queue", "source_offset").distinct().count()
    assert rows == len(late) == count, (rows, len(late), count)
    print(f"{count:,} due in one second: from due to visible {describe(late)}; each of them once")


def table(conf: Config) -> str:
    """Where the messages become visible."""
    return f"{conf.warehouse}/topics/{TOPIC}"


def visible(conf: Config) -> int:
    """How many are visible."""
    return DeltaTable(table(conf)).count() if DeltaTable.is_deltatable(table(conf)) else 0


def late_by(spark: SparkSession, conf: Config, begun: float) -> np.ndarray:
    """Seconds from a message's due time to the commit that made it visible, of those due since `begun`."""
    at = F.col("deliver_at").alias("at")
    shown = spark.read.format("delta").load(table(conf)).select("message_id", "_metadata.file_name", "visible_at")
    due = spark.read.format("delta").load(f"{conf.warehouse}/delayed").select("message_id", at)
    both = shown.join(due, "message_id")
    assert both.where("visible_at < at").isEmpty(), "visible before its time"
    return latencies(both.select("at", "file_name").toPandas(), table(conf), begun)


def wait_for(done: Callable[[], bool], seconds: float) -> None:
    """Polls until it is done."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "not done in time"
        time.sleep(0.5)


def compare_waiting(spark: SparkSession, place: Path, count: int, ending: int, scattered: bool) -> None:
    """Coordination's batches while few and many wait; the first round warms the JVM."""
    typical = []
    for name, waiting in (("warm-up", 10_000), ("few", 10_000), ("many", count)):
        conf = config.from_mapping(settings(place / name, {"transaction.op_park_time": "1h"}))
        typical.append(Waiting(spark, conf, waiting, ending if name == "many" else 0, scattered).measure())
    print(f"ratio {typical[2] / typical[1]:.2f}")


class Waiting:
    """Coordination without landing: `delayed` is filled directly, then gets 1 000 messages every 2 s, due after 1 s."""

    ROUNDS, ROUND_S, NEW = 20, 2, 1_000

    def __init__(self, spark: SparkSession, conf: Config, count: int, ending: int, scattered: bool) -> None:
        self.spark, self.conf, self.count, self.ending, self.scattered = spark, conf, count, ending, scattered
        self.warehouse = Warehouse(spark, conf.warehouse)
        self.next = count
        self.busy, self.stopping = threading.Lock(), False

    def measure(self) -> float:
        """Prints the figures; returns the median duration of a batch with work, in s."""
        self.warehouse.create()
        self.warehouse.ensure_topic(TOPIC)
        filled = load.timed(lambda: self._append(self.count, self._far()))
        begun = time.perf_counter()
        query = self._start()
        wait_for(lambda: bool(query.recentProgress), 900)
        started = time.perf_counter() - begun
        for _ in range(self.ROUNDS):
            time.sleep(self.ROUND_S)
            assert query.isActive, query.exception()
            self._append(self.NEW, F.lit(time.time_ns() // 1_000_000 + 1_000))
        time.sleep(self.ROUND_S)
        busy = [p for p in query.recentProgress if p.numInputRows or p.stateOperators[0].numRowsUpdated][-20:]
        state = query.recentProgress[-1].stateOperators[0]
        self._stop(query)
        took = [p.durationMs["triggerExecution"] / 1_000 for p in busy]
        updates, commits = ([getattr(p.stateOperators[0], name) for p in busy] for name in _STATE_TIMES)
        changed = [p.stateOperators[0].numRowsUpdated for p in busy]
        print(
            f"{self.count:,} waiting, {self.ending:,} due a second: filled in {filled:.0f} s, first batch after "
            f"{started:.0f} s; then batches of {np.median(took):.2f} s, at most {max(took):.2f} s; "
            f"{state.numRowsTotal:,} segments, {np.median(changed):,.0f} changed in a batch, "
            f"{state.memoryUsedBytes / 1e6:,.0f} MB of state; task ms: state machine {np.median(updates):,.0f}, "
            f"state store's commit {np.median(commits):,.0f}",
            flush=True,
        )
        return float(np.median(took))

    def _far(self) -> Column:
        """When the waiting ones are due: in a month, or from two minutes on."""
        begin = time.time_ns() // 1_000_000
        if not self.ending:
            return F.lit(begin + _FAR_MS)
        number = F.rand(1) * self.count if self.scattered else F.col("id")
        return F.lit(begin + 120_000) + (number * (1_000 / self.ending)).cast("bigint")

    def _append(self, count: int, due_ms: Column) -> None:
        """What landing would append for messages that come next."""
        stored = F.timestamp_millis(F.lit(time.time_ns() // 1_000_000))
        rows = self.spark.range(self.next, self.next + count).select(
            (F.col("id") % QUEUES).cast("int").alias("queue"),
            F.expr(f"id div {QUEUES}").alias("queue_offset"),
            F.format_string("M%012d", "id").alias("message_id"),
            F.lit(TOPIC).alias("topic"),
            (F.col("id") % QUEUES).cast("int").alias("queue_id"),
            F.lit(b"." * 64).alias("body"),
            *[F.lit(None).alias(absent) for absent in ("producer_group", "tags", "keys", "properties", "sharding_key")],
            *[F.lit(None).alias(absent) for absent in ("delay_ms", "born_at")],
            stored.alias("stored_at"),
            F.timestamp_millis(due_ms).alias("deliver_at"),
        )
        self.warehouse.append(rows, "delayed")
        self.next += count

    def _start(self) -> StreamingQuery:
        """As the coordinator does it: what is open from the tables first, then their commits."""
        versions = {name: self.warehouse.version(name) for name in query.STREAMED}
        opened = f"{self.conf.checkpoints}/open"
        rebuild.open_rows(self.warehouse, versions, self.conf.transaction).write.format("delta").save(opened)
        rows = query.read(self.warehouse, opened, versions)
        writer = BatchWriter(self.conf, self.warehouse, 0)

        def write(frame: DataFrame, batch_id: int) -> None:
            with self.busy:
                if not self.stopping:
                    writer(frame, batch_id)

        return query.start(self.conf, rows, write, f"{self.conf.checkpoints}/checkpoint", available_now=False)

    def _stop(self, query: StreamingQuery) -> None:
        self.stopping = True
        with self.busy:  # the batch under way is finished
            query.stop()


if __name__ == "__main__":
    main()
