"""The figures: of the tables, read anew each time, and of the rounds of this run. Nothing is summed up over time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from commitlake.clock import now_ms
from commitlake.errors import WarehouseError
from commitlake.landing.positions import Position
from commitlake.places import is_local, local_path
from commitlake.questions import open as open_transactions
from commitlake.questions.tables import Tables, moment, opened
from commitlake.rounds import Rounds

log = logging.getLogger(__name__)

WINDOW_MS = 300_000
"""What ended, came or was asked in the last five minutes: a count since the beginning would read all of history."""

_PENDING = f"""
SELECT topic, producer_group, count(*) AS n, max({{now}} - epoch_ms(stored_at)) / 1000 AS oldest
FROM {open_transactions.VIEW} GROUP BY ALL
"""
_ENDED = """
SELECT topic, state, reason, count(*) AS n,
       quantile_cont(epoch_ms(resolved_at) - epoch_ms(stored_at), 0.5) / 1000 AS p50,
       quantile_cont(epoch_ms(resolved_at) - epoch_ms(stored_at), 0.99) / 1000 AS p99
FROM transactions WHERE resolved_at >= {since} GROUP BY ALL
"""
_REJECTED = "SELECT reason, count(*) AS n FROM rejected WHERE rejected_at >= {since} GROUP BY ALL"
_CHECKS = """
SELECT producer_group, count(*) FILTER (repeat = 0) AS sent, count(*) FILTER (repeat > 0) AS repeated
FROM checks WHERE requested_at >= {since} GROUP BY ALL
"""
_ANSWERED = """
SELECT producer_group, count(*) AS n FROM op
WHERE from_check AND stored_at >= {since} GROUP BY ALL
"""
_LATE = """
SELECT count(*) AS n, coalesce(max(epoch_ms(resolved_at) - epoch_ms(deliver_at)), 0) / 1000 AS late FROM deliveries
WHERE state = 'DELIVERED' AND resolved_at >= {since}
"""
_WAITING = """
SELECT (SELECT count(*) FROM delayed WHERE deliver_at > {moment})
     + (SELECT count(*) FROM transactions WHERE state = 'COMMITTED' AND deliver_at > {moment})
     - (SELECT count(*) FROM deliveries WHERE deliver_at > {moment}) AS n
"""


@dataclass(frozen=True)
class Sources:
    """Where the figures come from.

    Attributes:
        warehouse: where the tables are.
        rounds: of this run.
        position: how far landing came.
        ends: the next offset of each partition in Kafka, by topic without prefix.
        epoch: number of this start.
    """

    warehouse: str
    rounds: Rounds
    position: Callable[[], Position]
    ends: Callable[[], Mapping[str, Mapping[int, int]]]
    epoch: int


def collect(sources: Sources) -> Iterable[Metric]:
    """All metrics, as docs/operations.md lists them."""
    yield from of_rounds(sources)
    yield from of_lag(sources)
    yield from of_disk(sources)
    try:
        with opened(sources.warehouse) as tables:
            yield from of_tables(tables)
    except WarehouseError as error:  # HDFS, or a catalog: the rest is worth having
        log.info("no figures of the tables: %s", error)


def of_rounds(sources: Sources) -> Iterable[Metric]:
    """What the rounds of this run took, and when maintenance ended."""
    rounds, newest = sources.rounds, sources.rounds.newest
    if rounds.maintained_at is not None:
        yield _one("maintained_timestamp_seconds", "when maintenance ended last", rounds.maintained_at / 1_000)
    yield _one("epoch", "number of this start", sources.epoch)
    yield _one("rounds", "rounds since this start", rounds.count)
    yield _one("alive_timestamp_seconds", "when a round ended or none was needed", rounds.alive_at / 1_000)
    if newest is not None:
        steps = {"judge": newest.judge_s, "write": newest.write_s}
        yield _family("round_seconds", "what the newest round took, by step", "step", steps)
        yield _one("round_records", "records that the newest round landed", newest.records)


def of_lag(sources: Sources) -> Iterable[Metric]:
    """Records in Kafka that have not landed."""
    position = sources.position()
    lag = {
        topic: sum(max(0, end - position.next(topic, number)) for number, end in ends.items())
        for topic, ends in sources.ends().items()
    }
    yield _family("landing_lag_records", "records in Kafka that have not landed", "topic", lag)


def of_disk(sources: Sources) -> Iterable[Metric]:
    """Room on the disk of a local warehouse."""
    if is_local(sources.warehouse):
        space = shutil.disk_usage(local_path(sources.warehouse))
        yield _one("disk_free_ratio", "the part of the warehouse's disk that is free", space.free / space.total)


def of_tables(tables: Tables) -> Iterable[Metric]:
    """What the tables say now."""
    now = now_ms()
    tables.open("transactions", "rejected", "checks", "op", "delayed", "deliveries")
    open_transactions.make(tables)

    def rows(sql: str) -> list[dict[str, Any]]:
        return list(tables.rows(sql.format(now=now, moment=moment(now), since=moment(now - WINDOW_MS))).to_pylist())

    pending, ended, checks = rows(_PENDING), rows(_ENDED), rows(_CHECKS)
    yield _many("pending", "transactions that are pending", ("topic", "producer_group"), pending, "n")
    oldest = max((row["oldest"] for row in pending), default=0.0)
    yield _one("oldest_pending_seconds", "age of the oldest pending transaction", oldest)
    named = ("topic", "state", "reason")
    yield _many("ended_5m", "half messages that ended in the last 5 minutes", named, ended, "n")
    yield _many("end_p50_seconds", "from a half message to its end, median of 5 minutes", named, ended, "p50")
    yield _many("end_p99_seconds", "the same, 99 of 100", named, ended, "p99")
    yield _many("rejected_5m", "records rejected in the last 5 minutes", ("reason",), rows(_REJECTED), "n")
    group = ("producer_group",)
    yield _many("checks_sent_5m", "checks sent in the last 5 minutes", group, checks, "sent")
    yield _many("checks_repeated_5m", "checks sent again in the last 5 minutes", group, checks, "repeated")
    yield _many("checks_answered_5m", "answers to checks in the last 5 minutes", group, rows(_ANSWERED), "n")
    (late,) = rows(_LATE)
    yield _one("delivered_5m", "delayed messages delivered in the last 5 minutes", late["n"])
    yield _one("delivered_late_seconds", "how late the latest of them was", late["late"])
    (waiting,) = rows(_WAITING)
    yield _one("delayed_waiting", "messages that are due later", waiting["n"])
    names = ("half", "op", "transactions", "checks", "rejected")
    yield _family("table_files", "files of a table", "table", {name: tables.files(name).num_rows for name in names})
    logs = {name: tables.log_length(name) for name in names}
    yield _family("table_log_entries", "files in the log of a table", "table", logs)


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"commitlake_{name}", text, value=value)


def _family(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"commitlake_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _many(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Mapping[str, Any]], value: str) -> Metric:
    family = GaugeMetricFamily(f"commitlake_{name}", text, labels=labels)
    for row in rows:
        family.add_metric([str(row[label] or "") for label in labels], row[value])
    return family
