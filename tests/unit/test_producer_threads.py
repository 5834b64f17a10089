"""Threads of a producer: sends that a signal handler interrupts, and readers of checks that take turns."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn

import pytest
from tests.support.killing import python
from tests.support.namespace import Listener
from tests.support.polling import wait_for

from commitlake.clients.daemon_pool import DaemonPool
from commitlake.clients.producer import DefaultMQProducer, Message, TransactionMQProducer, check_reader
from commitlake.clients.producer.by_hand import ByHand
from commitlake.clients.producer.check_turns import READERS, CheckTurns, Turned
from commitlake.clients.producer.engine import Queue, Result
from commitlake.config import KafkaConfig
from commitlake.errors import FailedSendError, ProducerError, RefusedSendError
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import Encoded
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import MemoryEngine, MemoryLink

RECORD = Encoded(None, b"", [])
AT = Position(0, 5)


class TimeLimit(Exception):
    """As Celery's, raised by a signal handler."""


class Client:
    """Tells each outcome in a thread of its own, as Kafka's clients do."""

    def __init__(self) -> None:
        self.callers: set[threading.Thread] = set()
        self.chosen: int | None = None
        self.flushes = threading.Event()
        self.flushes.set()
        self.is_closed = False
        self._sent: SimpleQueue[Result[Position]] = SimpleQueue()
        threading.Thread(target=self._tell, daemon=True).start()

    def send(self, topic: str, queue: Queue, record: Encoded, timeout_ms: int) -> Result[Position]:
        self.callers.add(threading.current_thread())
        if topic != "orders":
            msg = f"{topic} is not there"
            raise FailedSendError(msg)
        self.chosen = queue if isinstance(queue, int) else queue(4)
        sent = Result[Position]()
        self._sent.put(sent)
        return sent

    def flush(self, timeout_s: float) -> bool:
        self.callers.add(threading.current_thread())
        return self.flushes.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        self.flush(timeout_s)
        self.is_closed = True

    def _tell(self) -> None:
        while True:
            self._sent.get().set_result(AT)


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Whether a call still ran at its instruction number `at`, where a signal handler raises an exception."""
    left = at

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            sys.settrace(None)
            raise TimeLimit
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except TimeLimit:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_send_may_be_interrupted_at_each_instruction_and_the_next_one_is_sent() -> None:
    client = Client()
    engine = ByHand(client)

    def send() -> Position:
        return engine.send("orders", choose, RECORD, 1_000).result(10)

    def choose(of: int) -> int:
        client.callers.add(threading.current_thread())
        return of - 1

    at = 1
    while interrupted(send, at):
        assert send() == AT
        at += 1
    assert at > 100
    assert client.chosen == 3
    assert engine.flush(1)  # at the shutdown of a producer beside others
    assert threading.main_thread() not in client.callers


@pytest.mark.parametrize("is_first", [True, False])
def test_a_transaction_of_which_a_send_was_interrupted_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Nobody knows whether Kafka has what was interrupted; a decision takes what it does not list along."""
    lake = InMemoryCoordinator()
    with lake.producer("shop", Listener()) as producer:
        transaction, send = producer.begin_transaction(), producer.engine.send

        def interrupted(*given: Any) -> NoReturn:
            send(*given)
            raise TimeLimit

        if not is_first:
            transaction.send(Message("orders", "a book"))
        monkeypatch.setattr(producer.engine, "send", interrupted)
        with pytest.raises(TimeLimit):
            transaction.send(Message("points", "+2"))
        monkeypatch.setattr(producer.engine, "send", send)
        with pytest.raises(RefusedSendError, match="can only roll back"):
            transaction.send(Message("points", "+2"))
        with pytest.raises(ProducerError, match="may or may not be in Kafka"):
            transaction.commit()
        lake.advance("1h")
    assert [lake.messages(topic) for topic in ("orders", "points")] == [[], []]
    assert lake.pending == []


def test_what_the_client_raises_comes_to_the_main_thread_and_threads_end_with_the_engine() -> None:
    before = threading.active_count()
    engine = ByHand(Client())
    with pytest.raises(FailedSendError, match="bills is not there"):
        engine.send("bills", 0, RECORD, 1_000)
    assert threading.active_count() > before + 1
    engine.close(0)
    wait_for(lambda: threading.active_count() <= before + 1)  # the client's own
    assert engine.send("orders", 0, RECORD, 1_000).result(10) == AT  # after a handler that shut it down


def after(seconds: float, call: Callable[[], object]) -> None:
    """Calls what a signal handler interrupts by an exception."""

    def limit(*_: object) -> None:
        raise TimeLimit

    handler = signal.signal(signal.SIGALRM, limit)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(TimeLimit):
            call()
    finally:
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("end", [ByHand.flush, ByHand.close])
def test_a_call_that_is_interrupted_goes_on_and_its_thread_ends_with_the_engine(
    end: Callable[[ByHand, float], object],
) -> None:
    before, client = threading.active_count(), Client()
    client.flushes.clear()
    engine = ByHand(client)
    after(0.2, lambda: end(engine, 60))
    threading.Timer(0.5, client.flushes.set).start()
    engine.close(60)
    assert client.is_closed
    assert engine.send("orders", 0, RECORD, 1_000).result(10) == AT
    wait_for(lambda: threading.active_count() <= before + 1, 15)


def test_a_shutdown_that_was_interrupted_is_made_good_by_the_next_one() -> None:
    begun: list[float] = []

    class Connection:
        def leave(self, holder: object, timeout_s: float) -> None:
            begun.append(timeout_s)
            if len(begun) == 1:
                raise TimeLimit

    producer = DefaultMQProducer("group", bootstrap_servers="nowhere:9092")
    producer._running, producer._link._connection = True, Connection()  # type: ignore[assignment]
    with pytest.raises(TimeLimit):
        producer.shutdown(1)
    for _ in range(2):
        producer.shutdown(5)
    assert begun == [1, 5]


def in_place_of_a_start(monkeypatch: pytest.MonkeyPatch, handler: Callable[[], object]) -> None:
    """Calls a signal handler when the next thread is about to start."""
    start, handlers = threading.Thread.start, [handler]

    def interrupted(thread: threading.Thread) -> None:
        if handlers:
            handlers.pop()()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)


def test_a_pool_goes_on_after_a_handler_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit() -> None:
        raise TimeLimit

    pool = DaemonPool(1, "pool")
    in_place_of_a_start(monkeypatch, limit)
    with pytest.raises(TimeLimit):
        pool.submit(int)
    assert pool.submit(int).result(10) == 0
    pool.stop(10)
    assert not pool._threads


def test_a_handler_may_shut_down_a_pool_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = DaemonPool(2, "pool")
    assert pool.submit(int).result(10) == 0
    held = threading.Event()
    first = pool.submit(held.wait, 10)
    in_place_of_a_start(monkeypatch, lambda: pool.stop(0))
    second = pool.submit(int)
    assert second.result(10) == 0
    held.set()
    assert first.result(10)
    wait_for(lambda: not pool._threads, 5)
    with pytest.raises(RuntimeError, match="was shut down"):
        pool.submit(int)


def test_a_send_at_the_end_of_the_process_fails_and_the_process_ends() -> None:
    program = """
from tests.unit.test_producer_threads import RECORD, ByHand, Client, FailedSendError
def block(engine):
    try:
        yield
    finally:
        try:
            engine.send("orders", 0, RECORD, 1_000)
        except FailedSendError as error:
            print(error, engine.flush(1))
left = block(ByHand(Client()))
next(left)
"""
    done = python("-c", program, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "this Python process is ending" in done.stdout
    assert "False" in done.stdout


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
    wait_for(lambda: sum(reader.turns == 2 for reader in every) == READERS)
    turns.add(well)
    for number in range(1, 5):
        wait_for(partial(well.has_begun, number))
        well.let()
    assert sum(reader.turns == 2 for reader in every) == READERS
    for reader in [well, *every]:
        reader.after = Turned.ENDS
        reader.let()
    wait_for(lambda: not turns._readers)


def test_each_reader_gets_its_turn() -> None:
    turns, begun = CheckTurns(), [0] * 3 * READERS

    def read(reader: int, _: int) -> Turned:
        begun[reader] += 1
        return Turned.ENDS if min(begun) >= 5 else Turned.WELL

    for reader in range(len(begun)):
        turns.add(partial(read, reader))
    wait_for(lambda: not turns._readers, why=lambda: begun)
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
    wait_for(lambda: not turns._readers)


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
    assert len(turns._readers) == 1
    producer.shutdown(0)
    wait_for(lambda: not turns._readers)
