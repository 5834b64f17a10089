"""Readers of checks take turns in a few threads; those whose Kafka is dead leave one to the others."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from tests.support.namespace import Listener
from tests.support.polling import wait_for

from commitlake.clients.producer import TransactionMQProducer, check_reader
from commitlake.clients.producer.check_turns import READERS, CheckTurns, Turned
from commitlake.config import KafkaConfig
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import MemoryEngine, MemoryLink


class Reader:
    """Counts its turns; each lasts until `let`, and `after` says how it went."""

    def __init__(self, after: Turned) -> None:
        self.after, self.turns, self._go_on = after, 0, threading.Semaphore(0)

    def __call__(self, _: int) -> Turned:
        self.turns += 1
        assert self._go_on.acquire(timeout=60)
        return self.after

    def let(self) -> None:
        self._go_on.release()

    def has_begun(self, turns: int) -> bool:
        return self.turns >= turns


@pytest.mark.parametrize("dead", [READERS, 3 * READERS])
def test_readers_that_a_dead_kafka_holds_up_leave_a_turn_for_others(dead: int) -> None:
    turns, well = CheckTurns(), Reader(Turned.WELL)
    every = [Reader(Turned.FAILED) for _ in range(dead)]
    for reader in every:
        reader.let()  # the first turn of each fails at once, and the next ones are held up
        turns.add(reader)
    wait_for(lambda: sum(reader.turns == 2 for reader in every) == READERS - 1)
    turns.add(well)
    for number in range(1, 5):
        wait_for(partial(well.has_begun, number))
        well.let()
    assert sum(reader.turns == 2 for reader in every) == READERS - 1
    for reader in [well, *every]:
        reader.after = Turned.ENDS
        reader.let()
    wait_for(lambda: not turns._threads)


def test_each_reader_gets_its_turn() -> None:
    turns, begun = CheckTurns(), [0] * 3 * READERS

    def read(reader: int, _: int) -> Turned:
        begun[reader] += 1
        return Turned.ENDS if min(begun) >= 5 else Turned.WELL

    for reader in range(len(begun)):
        turns.add(partial(read, reader))
    wait_for(lambda: not turns._threads, why=lambda: begun)
    assert min(begun) >= 5


def no_thread(_: threading.Thread) -> None:
    msg = "can't start new thread"  # what CPython raises
    raise RuntimeError(msg)


def test_a_reader_for_which_no_thread_can_start_is_read_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, every = CheckTurns(), [Reader(Turned.WELL), Reader(Turned.WELL)]
    turns.add(every[0])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        turns.add(every[1])
    for number in range(1, 3):
        for reader in every:
            reader.let()
        wait_for(partial(every[1].has_begun, number))
    for reader in every:
        reader.after = Turned.ENDS
        reader.let()
    wait_for(lambda: not turns._threads)


def test_a_start_without_a_thread_for_checks_is_made_good_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, lake = CheckTurns(), InMemoryCoordinator()
    monkeypatch.setattr(check_reader, "turns", lambda: turns)
    producer = TransactionMQProducer("shop", Listener(), bootstrap_servers="memory:9092")
    conf = KafkaConfig("memory:9092", "commitlake.", queues=1, options={})
    producer._link = MemoryLink(conf, MemoryEngine("commitlake.", 1, lake.append), lambda: lake.settings)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start new thread"):
        patch.setattr(threading.Thread, "start", no_thread)
        producer.start()
    producer.start()
    assert turns._readers == 1
    producer.shutdown(0)
    wait_for(lambda: not turns._threads)
