"""Landed time: up to when everything has landed that decides on a transaction."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.test_config import load

from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.coordinator.scheduler import Scheduler
from commitlake.errors import KafkaError
from commitlake.kafka.log_ends import Offsets
from commitlake.kafka.topics import log_ends


def at(half: int, op: int) -> LandingPosition:
    return LandingPosition(1, {("half", 0): half, ("op", 0): op, ("admin", 0): 3})


def held(half: int, op: int, admin: int = 3) -> Offsets:
    return {("half", 0): half, ("op", 0): op, ("admin", 0): admin}


def test_it_is_unknown_until_all_has_landed_that_kafka_held_at_the_start() -> None:
    time = Watermark()
    time.ask(1_000, held(10, 5))
    assert time.at(at(10, 4)) == -1
    assert time.at(at(10, 5)) == 1_000


def test_it_is_when_kafka_was_asked_and_not_when_its_answer_has_landed() -> None:
    """Each round takes a part of a backlog: what was asked later does not count before that has landed."""
    time = Watermark()
    time.ask(1_000, held(10, 5))
    time.ask(2_000, held(40, 20))
    assert time.at(at(10, 5)) == 1_000
    assert time.at(at(39, 20)) == 1_000
    assert time.at(at(40, 20)) == 2_000


def test_a_clock_that_was_a_day_ahead_for_a_moment_is_forgotten_with_the_next_answer() -> None:
    time = Watermark()
    time.ask(86_400_000, held(0, 0))
    assert time.at(at(1, 1)) == 86_400_000
    time.ask(1_000, held(0, 0))
    assert time.at(at(1, 1)) == 1_000


def test_a_silent_partition_holds_it_back_only_until_it_has_landed() -> None:
    time = Watermark()
    time.ask(1_000, held(0, 0, admin=4))
    assert time.at(at(100, 100)) == -1
    assert time.at(at(100, 100).advanced({("admin", 0): 4})) == 1_000


def test_of_a_long_backlog_it_goes_on_in_coarser_steps() -> None:
    time = Watermark()
    for n in range(2_000):
        time.ask(n, held(n, n))
    steps = [time.at(at(n, n)) for n in range(2_000)]
    assert all(landed <= n for n, landed in enumerate(steps))
    assert steps[0] == 0
    assert steps[-1] > 1_900


def scheduler(clock: Any, time: Watermark, held: Callable[[], Offsets]) -> Scheduler:
    """One that only asks Kafka what it holds."""
    context, landing = SimpleNamespace(config=load(), clock=clock), SimpleNamespace(position=at(0, 0))
    return Scheduler(cast(Any, context), cast(Any, landing), time, held, cast(Any, None), 0)


def test_the_time_is_taken_before_kafka_is_asked() -> None:
    """What comes between the two is below the ends, and later than the watermark."""
    times = [1_000]
    clock = SimpleNamespace(now_ms=lambda: times[-1])

    def asked() -> Offsets:
        times.append(2_000)
        return held(10, 5)

    time = Watermark()
    scheduler(clock, time, asked)._ask()
    assert time.at(at(10, 5)) == 1_000


def test_without_traffic_kafka_is_asked_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would hear of an outage before something is due."""

    def away() -> Offsets:
        raise KafkaError("away")

    idle = scheduler(SimpleNamespace(now_ms=lambda: 1_000), Watermark(), away)
    idle.tick()
    assert caplog.text == ""
    monkeypatch.setattr(idle, "_asked_at", float("-inf"))
    idle.tick()
    assert "nothing is decided while Kafka is away" in caplog.text


def test_while_kafka_is_away_it_stands_still() -> None:
    clock = SimpleNamespace(now_ms=lambda: 1_000)

    def away() -> Offsets:
        raise KafkaError("away")

    time = Watermark()
    scheduler(clock, time, away)._ask()
    assert time.at(at(10, 5)) == -1


def test_an_answer_without_a_topic_is_an_error_and_not_an_empty_topic() -> None:
    """A broker that has just started may not know a topic for a moment: its records would count as landed."""
    known = {"commitlake.half": 1, "commitlake.admin": 1}

    class Client:
        def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            return [
                {"name": name, "error_code": 0 if name in known else 3, "partitions": [0] if name in known else []}
                for name in names
            ]

        def list_partition_offsets(self, wanted: dict[Any, Any]) -> dict[Any, Any]:
            return {partition: SimpleNamespace(offset=10, leader_epoch=3) for partition in wanted}

    with pytest.raises(KafkaError, match=r"commitlake\.op"):
        log_ends(cast(Any, Client()), load())
