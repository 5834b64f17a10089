"""What fires in a night of troubles, and what does not: Prometheus's rule tests over the metrics of one coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from tests.support.killing import ROOT
from tests.support.prometheus import promtool

STEP_S = 15
NIGHT_MIN = 330
SCRAPED = '{instance="a", job="commitlake"}'
GROUP = '{consumer_group="points", instance="a", job="commitlake", topic="orders"}'
DISK = '{directory="checkpoints", instance="a", job="commitlake"}'
GONE = "stale"  # as Prometheus marks a series whose target does not answer


@dataclass(frozen=True)
class Now:
    """The coordinator at some moment; its metrics are gone while it is.

    Attributes:
        up: whether it answers.
        starts: how often it has started.
        kafka: whether Kafka answers it.
        oldest_s: age of the oldest pending transaction.
        free: part of the disk of the checkpoints.
        unread_s: age of the oldest message that a group has not read.
        members: of that group.
    """

    up: bool = True
    starts: int = 1
    kafka: bool = True
    oldest_s: int = 3
    free: float = 0.5
    unread_s: int = 0
    members: int = 1


@dataclass(frozen=True)
class Trouble:
    """From one minute to another; `away` are seconds without a coordinator, and `each` how often that comes."""

    begin: float
    end: float
    away: int = 0
    each: int = 0
    kafka: bool = True
    hangs: bool = False
    free: float = 0.5
    unread: bool = False


NIGHT = (
    Trouble(10, 13, away=60),  # ordinary restarts
    Trouble(25, 28, away=160),
    Trouble(40, 41.5, kafka=False),  # a broker that is replaced
    Trouble(60, 81, hangs=True),  # transactions of a dead group, among restarts and outages
    *(Trouble(62, 64, away=60), Trouble(66, 68, kafka=False), Trouble(71, 73, away=75), Trouble(76, 78, kafka=False)),
    Trouble(110, 120, away=40, each=60),  # a crash loop: 40 s away, 20 s there
    Trouble(150, 160, free=0.05),  # the disk fills up
    Trouble(156, 166, away=600),  # and the coordinator ends with it
    Trouble(195, 225, kafka=False),  # Kafka away
    Trouble(210, 211, away=60),  # meanwhile the coordinator is started again
    Trouble(260, 290, unread=True),  # the last consumer of a group is killed
)
MUST = {
    "Restarts": [(114, 120)],
    "OldestPending": [(71, 81)],
    "DiskNearlyFull": [(156, 166)],
    "Down": [(161, 166)],
    "KafkaAway": [(199, 225)],
    "ConsumersAway": [(284, 290)],
}
"""When an alert fires: from which minute to which."""
LINGERS_MIN = {"Restarts": 20, "OldestPending": 16, "DiskNearlyFull": 6, "Down": 1, "KafkaAway": 6, "ConsumersAway": 8}
"""For how long it goes on then, at most; at any other minute it does not."""
MAY = {"Restarts": 112, "OldestPending": 65, "DiskNearlyFull": 155, "Down": 160, "KafkaAway": 197, "ConsumersAway": 272}
"""Not before this minute."""


def at(minute: float) -> Now:
    """The coordinator then."""
    now = Now()
    for trouble in NIGHT:
        since_s = round((minute - trouble.begin) * 60)
        starts = sum(since_s >= trouble.away + n * trouble.each for n in range(_times(trouble))) if trouble.away else 0
        now = replace(now, starts=now.starts + starts)
        if trouble.begin <= minute < trouble.end:
            now = _within(trouble, now, since_s)
    return now


def _times(trouble: Trouble) -> int:
    return round((trouble.end - trouble.begin) * 60) // trouble.each if trouble.each else 1


def _within(trouble: Trouble, now: Now, since_s: int) -> Now:
    is_away = trouble.away > (since_s % trouble.each if trouble.each else since_s)
    return replace(
        now,
        up=now.up and not is_away,
        kafka=now.kafka and trouble.kafka,
        free=min(now.free, trouble.free),
        oldest_s=max(now.oldest_s, since_s if trouble.hangs or not trouble.kafka else 0),
        unread_s=since_s if trouble.unread else now.unread_s,
        members=0 if trouble.unread else now.members,
    )


def series() -> dict[str, str]:
    """What Prometheus has scraped."""
    found: dict[str, list[str]] = {}
    for step in range(NIGHT_MIN * 60 // STEP_S):
        now = at(step * STEP_S / 60)
        own = {
            f"commitlake_epoch{SCRAPED}": now.starts,
            f"commitlake_alive_timestamp_seconds{SCRAPED}": step * STEP_S,
            f"commitlake_kafka_reachable{SCRAPED}": int(now.kafka),
            f"commitlake_oldest_pending_seconds{SCRAPED}": now.oldest_s,
            f"commitlake_disk_free_ratio{DISK}": now.free,
            f"commitlake_consumer_oldest_seconds{GROUP}": now.unread_s,
            f"commitlake_consumer_members{GROUP}": now.members,
        }
        for name, value in own.items():
            found.setdefault(name, []).append(str(value) if now.up else GONE)
        found.setdefault(f"up{SCRAPED}", []).append(str(int(now.up)))
    return {name: " ".join(values) for name, values in found.items()}


def expectations() -> Iterator[dict[str, object]]:
    """Whether each alert fires, at each minute at which that is certain."""
    rules = yaml.safe_load((ROOT / "conf/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    for name in (rule["alert"] for rule in rules):
        alert = name.removeprefix("CommitLake")
        for minute in range(NIGHT_MIN):
            must = any(begin <= minute < end for begin, end in MUST.get(alert, ()))
            last = max((end for _, end in MUST.get(alert, ())), default=0) + LINGERS_MIN.get(alert, 0)
            if must or not MAY.get(alert, NIGHT_MIN) <= minute <= last:
                query = f'clamp_max(count(ALERTS{{alertname="{name}", alertstate="firing"}}), 1) or vector(0)'
                yield {
                    "expr": query,
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": int(must)}],
                }


def test_in_a_night_of_troubles_an_alert_fires_when_it_should_and_at_no_other_time(tmp_path: Path) -> None:
    night = {
        "interval": f"{STEP_S}s",
        "input_series": [{"series": name, "values": values} for name, values in series().items()],
        "promql_expr_test": list(expectations()),
    }
    rules = str(ROOT / "conf/prometheus/alerts.yml")
    tests = {"rule_files": [rules], "evaluation_interval": f"{STEP_S}s", "tests": [night]}
    (tmp_path / "night.yml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", "night.yml", place=tmp_path)
