"""The metrics: the counts since this start, and figures from the tables and Kafka as they are now."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import duckdb
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from commitlake.clients.consumer import overview as consumers
from commitlake.config import Config, disks
from commitlake.coordinator.counters import BOUNDS_S, Ages, Counters
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.round_log import RoundLog
from commitlake.errors import KafkaError
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.clock import now_ms
from commitlake.protocol.states import REJECTED_REASONS, Delivery, Reason, State
from commitlake.reading.questions import overview
from commitlake.reading.questions.tables import Tables, moment, opened

log = logging.getLogger(__name__)

_WAITING = """
SELECT (SELECT count(*) FROM delayed WHERE deliver_at > {moment})
     + (SELECT count(*) FROM transactions WHERE state = 'COMMITTED' AND deliver_at > {moment})
     - (SELECT count(*) FROM deliveries WHERE deliver_at > {moment}) AS n
"""


_REACHABLE = "whether Kafka answers, and no query waits for it: 1 or 0"
_MOST_TOPICS = 50
_OTHERS = "_others"


class MetricNames:
    """The topics that metrics name: the first 50. Producers name topics, and Prometheus keeps each name for weeks."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label(self, topic: str) -> str:
        """The name of a topic, or the label that all other topics share."""
        if len(self._known) < _MOST_TOPICS:
            self._known.add(topic)
        return topic if topic in self._known else _OTHERS


def collect(
    config: Config,
    rounds: RoundLog,
    counters: Counters,
    position: LandingPosition,
    ends: Callable[[], Offsets],
    epoch: int,
    failed: Mapping[str, bool],
    names: MetricNames,
) -> Iterable[Metric]:
    """All metrics, as docs/reference/metrics.md lists them, of a run at some time.

    `ends` asks Kafka for the next offset of each partition. `failed` says whether the forwarding of each topic of
    `topics.to_kafka` has failed.
    """
    yield from of_rounds(config, rounds, epoch)
    yield from of_counters(counters)
    yield from of_lag(position, ends)
    yield from of_disk(config)
    text = "whether nothing of a topic goes to Kafka, until that is tried again"
    yield _family("to_kafka_failed", text, "topic", failed)
    try:
        with opened(config) as tables:
            yield from of_tables(tables, names)
        yield from of_consumers(config)
    except (*consumers.UNREADABLE, duckdb.IOException) as error:  # HDFS, a catalog, a disk: all others are still useful
        log.info("can't read the tables for metrics: %s", error)


def of_rounds(config: Config, rounds: RoundLog, epoch: int) -> Iterable[Metric]:
    """Numbers and times of the rounds of this run, and when maintenance ended."""
    if config.maintenance.interval_ms:
        text = "when maintenance ended last, or this run began"
        yield _one("maintained_timestamp_seconds", text, rounds.maintained_at / 1_000)
    yield _one("epoch", "number of this start, or of the last time that all queries began again", epoch)
    yield _counted("rounds", "rounds", (), {(): rounds.count})
    yield _counted("round_records", "records that rounds landed", (), {(): rounds.records})
    took: dict[tuple[str, ...], float] = {("classify",): rounds.classify_s, ("write",): rounds.write_s}
    yield _counted("round_seconds", "what rounds took, by step", ("step",), took)
    yield _one("alive_timestamp_seconds", "when a round ended or none was needed", rounds.alive_at / 1_000)


def of_lag(position: LandingPosition, ends: Callable[[], Offsets]) -> Iterable[Metric]:
    """Whether Kafka answers, and the records in it that have not landed."""
    try:
        now = ends()
    except KafkaError as error:  # all other metrics matter most when Kafka is away
        log.info("can't read the lag of landing: %s", error)
        yield _one("kafka_reachable", _REACHABLE, 0)
        return
    yield _one("kafka_reachable", _REACHABLE, 1)
    lag: Counter[str] = Counter()
    for (topic, number), end in now.items():
        lag[topic] += max(0, end - position.next(topic, number))
    yield _family("landing_lag_records", "records in Kafka that have not landed", "topic", lag)


def of_disk(config: Config) -> Iterable[Metric]:
    """Room on the local disks, and whether landing waits for more."""
    found = [disk for disk in disks.disks(config) if disk.total]
    ratios = {disk.key: disk.free / disk.total for disk in found}
    yield _family("disk_free_ratio", "the part of a directory's disk that is free", "directory", ratios)
    yield _one("landing_waits_for_room", "whether landing waits for room: 1 or 0", any(disk.is_short for disk in found))


def of_counters(counters: Counters) -> Iterable[Metric]:
    """Ends, rejected records, checks and delays since this start."""
    ends = [(state.name, reason.name) for state in State for reason in Reason]
    yield _counted("ended", "half messages that ended", ("state", "reason"), counters.of("ended", ends))
    deliveries = counters.of("deliveries", [(each.name,) for each in (Delivery.DELIVERED, Delivery.RECALLED)])
    yield _counted("deliveries", "delayed messages that ended", ("state",), deliveries)
    reasons = [(each,) for each in REJECTED_REASONS]
    yield _counted("rejected", "records rejected", ("reason",), counters.of("rejected", reasons))
    checks = counters.of("checks", [("sent",), ("repeated",)])
    yield _counted("checks_sent", "checks sent", (), {(): checks["sent",]})
    yield _counted("checks_repeated", "checks sent again", (), {(): checks["repeated",]})
    yield _counted("checks_answered", "answers to checks", (), counters.of("answers", [()]))
    yield _ages("end_seconds", "from a half message to its end", {(): counters.ended})
    late: dict[tuple[str, ...], Ages]
    late = {("half",): counters.committed, ("messages",): counters.normal}
    text = "from the op, or the normal message, to the row that can be read"
    yield _ages("visible_late_seconds", text, late, "source")
    text = "from the due time of a delayed message to the row that can be read"
    yield _ages("delivered_late_seconds", text, {(): counters.late})


def of_tables(tables: Tables, names: MetricNames) -> Iterable[Metric]:
    """Pending and delayed messages, and the files of the tables."""
    now = now_ms()
    pending = overview.pending(tables, now).to_pylist()
    by_topic: Counter[str] = Counter()
    for row in pending:
        by_topic[names.label(row["topic"])] += row["messages"]
    yield _family("pending", "transactions that are pending", "topic", by_topic)
    oldest = max((row["oldest_s"] for row in pending), default=0.0)
    yield _one("oldest_pending_seconds", "age of the oldest pending transaction, from its last resume if any", oldest)
    tables.open("transactions", "delayed", "deliveries")
    waiting = tables.rows(_WAITING.format(moment=moment(now)))["n"][0].as_py()
    yield _one("delayed_waiting", "messages that are due later", waiting)
    kept = ("half", "op", "transactions", "checks", "rejected")
    yield _family("table_files", "files of a table", "table", {name: tables.files(name).num_rows for name in kept})
    logs = {name: tables.log_length(name) for name in kept}
    yield _family("table_log_entries", "files in the log of a table", "table", logs)


def of_consumers(config: Config) -> Iterable[Metric]:
    """How far groups of consumers are behind, for the first 50 pairs of a group and a topic."""
    labels, now = ["consumer_group", "topic"], now_ms() / 1_000
    behind = GaugeMetricFamily("commitlake_consumer_behind", "messages that a group has not passed", labels=labels)
    oldest = GaugeMetricFamily("commitlake_consumer_oldest_seconds", "age of the oldest of them", labels=labels)
    members = GaugeMetricFamily("commitlake_consumer_members", "instances of a group that live", labels=labels)
    for lag in islice(consumers.lags(config), _MOST_TOPICS):
        behind.add_metric([lag.group, lag.topic], lag.behind)
        oldest.add_metric([lag.group, lag.topic], lag.late_s(now))
        members.add_metric([lag.group, lag.topic], lag.members)
    return behind, oldest, members


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"commitlake_{name}", text, value=value)


def _family(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"commitlake_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counted(name: str, text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(f"commitlake_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _ages(name: str, text: str, ages: Mapping[tuple[str, ...], Ages], *labels: str) -> Metric:
    family = HistogramMetricFamily(f"commitlake_{name}", text, labels=labels)
    for values, each in ages.items():
        sums = each.sums
        buckets = [(str(float(bound)), number) for bound, number in zip(BOUNDS_S, sums.within, strict=True)]
        family.add_metric(values, [*buckets, ("+Inf", sums.number)], sums.seconds)
    return family
