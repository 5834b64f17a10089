"""What begins all queries again in a process, and after which pause."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from commitlake.coordinator import restarts
from commitlake.coordinator.restarts import Restarts
from commitlake.errors import (
    CommitLakeError,
    ConfigError,
    DoubledError,
    FencedError,
    IdentityError,
    KafkaError,
    SetupError,
    StreamError,
    WarehouseError,
    explained,
)
from commitlake.spark.callbacks import held_weakly
from commitlake.tables.table_errors import explain_failure

PASSING = StreamError("landing", "Connection reset")
AWAY = KafkaError("cannot reach Kafka at k:9092")


def pauses(errors: Sequence[CommitLakeError], ran_s: float = 0) -> list[float | None]:
    counted = Restarts()
    return [counted.pause_s(error, ran_s) for error in errors]


@pytest.mark.parametrize("error", [PASSING, WarehouseError("cannot write to the table at /w/half")], ids=str)
def test_what_may_pass_is_tried_again_with_longer_pauses_and_then_no_more(error: CommitLakeError) -> None:
    assert pauses([error] * 8) == [*restarts.PAUSES_S, None, None]
    assert pauses([error] * 8, ran_s=601) == [restarts.PAUSES_S[0]] * 8  # each ran well for long


@pytest.mark.parametrize("kind", [FencedError, IdentityError, ConfigError, SetupError, DoubledError])
def test_what_does_not_pass_ends_it_at_once(kind: type[CommitLakeError]) -> None:
    assert pauses([kind("x")]) == [None]
    no_memory = RuntimeError("java.lang.OutOfMemoryError: Java heap space")
    assert pauses([explained("landing", no_memory)]) == [None]

    def write() -> None:
        raise no_memory

    with pytest.raises(SetupError, match=r"^Spark ran out of memory: java\.lang\.OutOfMemoryError"):
        explain_failure("/w/half", write)


def test_kafka_is_waited_for_without_end_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    counted = Restarts()
    with caplog.at_level(logging.WARNING):
        first = counted.pause_s(PASSING, 10)
        assert {counted.pause_s(AWAY, 0) for _ in range(1_000)} == {restarts.KAFKA_S}
        assert counted.pause_s(PASSING, 0) == restarts.PAUSES_S[0]
        counted.begun(75)
    assert first == restarts.PAUSES_S[0]
    assert [each.split(":")[0] for each in caplog.messages] == [
        "all queries begin again in 5 s, try 1 of 6, and nothing is lost",
        "all queries wait for Kafka, and nothing is lost",
        "all queries begin again in 5 s, try 1 of 6, and nothing is lost",
        "all queries run again, after 75 s",
    ]


def test_what_java_calls_does_not_keep_what_it_is_part_of() -> None:
    seen: list[tuple[Any, int]] = []

    class Part:
        def land(self, frame: Any, batch_id: int) -> None:
            seen.append((frame, batch_id))
            if batch_id == 8:
                raise ValueError("a write failed")

    part = Part()
    call, there = held_weakly(part.land), weakref.ref(part)
    frame: Any = "rows"
    call(frame, 7)
    with pytest.raises(ValueError, match="a write failed") as kept:
        call(frame, 8)
    del part
    assert there() is None
    with pytest.raises(RuntimeError, match="batch 9 came after the end"):
        call(frame, 9)  # a batch that was not landed must not count as done
    assert seen == [("rows", 7), ("rows", 8)]
    assert kept.value
