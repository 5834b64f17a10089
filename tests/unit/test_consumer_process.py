"""A consumer and its process: memory, signals, forks, what was closed, what can't go to another process."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.killing import python
from tests.support.polling import wait_for
from tests.support.topic_table import compact, consumer, message, rest, running, table, write

from commitlake.clients.consumer import subscription, topic
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.lanes import InFlight, Lane, Lanes
from commitlake.clients.consumer.receipts import Attempt
from commitlake.clients.consumer.rows import Chosen, Rows
from commitlake.clients.consumer.topic import Topic
from commitlake.errors import ConsumerError

PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
import commitlake
from tests.support.topic_table import consumer
from commitlake.clients.consumer.topic import Topic
from commitlake.errors import ConsumerError

place = Path(sys.argv[1])

def kill():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)

def sink():
    kafka = {"bootstrap_servers": "nowhere:9092"}
    commitlake.sink({"warehouse": place, "kafka": kafka}, "orders", name="sink", group="jobs")

def orders():
    return Topic(f"{place}/topics/orders")

def child(call):
    if (pid := os.fork()) == 0:
        try:
            print("child:", call(), flush=True)
        except BaseException as error:
            print("child:", type(error).__name__, error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

"""
AFTER_BREAK = """
messages = consumer(place)
for each in messages:
    each.done()
    break
kill()
"""
AFTER_NEXT = """
messages = consumer(place)
next(messages).done()
kill()
"""
AFTER_BATCHES = """
messages = consumer(place)
for batch in messages.batches():
    break
del batch
kill()
"""
FIRST_CLOSED = """
first, second = consumer(place, group="a"), consumer(place, group="b")
loop = iter(first)
next(loop).done()
for number, each in enumerate(second):
    each.done()
    if number == 0:
        first.close()
        del loop
    if number == 1:
        kill()
second.close()
print("stopped at", number)
"""
BOTH = """
first, second = consumer(place, group="a"), consumer(place, group="b")
for number, each in enumerate(zip(first, second)):
    if number == 1:
        kill()
print("stopped at", number)
"""
CHILD_IN_A_LOOP = """
for each in consumer(place):
    child(kill)
    break
print("parent goes on")
"""


def run(warehouse: Path, program: str) -> subprocess.CompletedProcess[str]:
    return python("-c", PRELUDE + program, str(warehouse), timeout=90)


@pytest.mark.parametrize("program", [AFTER_BREAK, AFTER_NEXT, AFTER_BATCHES])
def test_a_signal_after_a_loop_was_left_ends_the_process(warehouse: Path, program: str) -> None:
    assert run(warehouse, program).returncode == -signal.SIGTERM


@pytest.mark.parametrize("program", [FIRST_CLOSED, BOTH])
def test_a_signal_stops_each_of_two_consumers(warehouse: Path, program: str) -> None:
    found = run(warehouse, program)
    assert (found.returncode, found.stdout) == (0, "stopped at 1\n"), found.stderr


def test_the_child_of_a_fork_within_a_loop_ends_by_a_signal(warehouse: Path) -> None:
    found = run(warehouse, CHILD_IN_A_LOOP)
    assert (found.returncode, found.stdout) == (0, "parent goes on\n"), found.stderr


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("messages = consumer(place); each = next(messages); child(each.done)", "in another process"),
        ("messages = consumer(place); each = next(messages); child(each.retry)", "in another process"),
        ("messages = consumer(place); next(messages); child(lambda: next(messages))", "in another process"),
        ("messages = consumer(place); next(messages); child(lambda: list(messages))", "in another process"),
        ("messages = consumer(place); loop = messages.batches(); next(loop); child(lambda: list(loop))", "in another"),
        ("next(consumer(place)).done(); child(lambda: next(consumer(place)))", "forked from one that used deltalake"),
        ("list(consumer(place, follow=False)); child(lambda: commitlake.delayed({'warehouse': place}))", "deltalake"),
        ("sink(); child(sink)", "forked from one that used deltalake"),
        ("topic = orders(); child(orders)", "forked from one that used deltalake"),
    ],
)
def test_in_the_child_of_a_fork_a_consumer_says_what_to_do(warehouse: Path, program: str, told: str) -> None:
    found = run(warehouse, program).stdout
    assert found.startswith(("child: ConsumerError this ", "child: WarehouseError this "))
    assert told in found
    assert "`spawn`" in found


def test_a_consumer_that_has_not_begun_may_be_forked(warehouse: Path) -> None:
    found = run(warehouse, "messages = consumer(place, follow=False)\nchild(lambda: len(list(messages)))")
    assert found.stdout == "child: 40\n", found.stderr


@pytest.mark.parametrize("use", [list, next, lambda each: each.run(print), lambda each: list(each.batches())])
def test_a_consumer_that_was_closed_says_so(warehouse: Path, use: Any) -> None:
    with consumer(warehouse) as messages:
        loop = iter(messages)
        next(loop).done()
    assert list(loop) == [], "a loop under way ends"
    with pytest.raises(ConsumerError, match="was closed"):
        use(messages)
    with pytest.raises(ConsumerError, match="was closed"), messages:
        pass
    assert len(rest(warehouse)) == 39


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_message_says_why_it_can_not_go_to_another_process(warehouse: Path, send: Any) -> None:
    for group, hand_over in (("points", next), ("bills", lambda messages: next(messages.batches()))):
        with consumer(warehouse, group=group) as messages, pytest.raises(ConsumerError, match="and call done"):
            send(hand_over(messages))


SLOW = """
import logging
logging.basicConfig(format="%(message)s")
{handler}
signal.signal(signal.SIGINT, signal.default_int_handler)
messages = consumer(place)
messages.run(handle, threads=2)
print("left", flush=True)
"""


@pytest.mark.parametrize(
    "handler",
    [
        "def handle(message): print('begin', flush=True); time.sleep(60)",
        "import asyncio\nasync def handle(message): print('begin', flush=True); await asyncio.sleep(60)",
        "async def handle(message): print('begin', flush=True); time.sleep(60)",
    ],
)
def test_a_first_interrupt_of_a_run_says_what_it_waits_for_and_a_second_ends_it(warehouse: Path, handler: str) -> None:
    command = [sys.executable, "-c", PRELUDE + SLOW.format(handler=handler), str(warehouse)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        told = running.stderr.readline()
        assert told.startswith("waiting for the handlers of <ReceivedMessage orders half-0-")
        assert "a second signal ends the run without them" in told
        running.send_signal(signal.SIGINT)
        begun = time.monotonic()
        rest_told = running.communicate(timeout=30)[1]
        assert time.monotonic() - begun < 15
        assert running.returncode == 130
        assert "Traceback" not in rest_told
    assert len(rest(warehouse)) == 40


def test_a_message_that_stays_open_stops_its_own_queue_before_memory_is_full(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is finished behind it is kept, and a restart gets it again."""
    monkeypatch.setattr(subscription, "MOST_KEPT_BYTES", 1)
    held: list[Any] = []
    found: set[str] = set()

    def handle(each: Any) -> None:
        if each.queue_id == 0 and not held:
            held.append(each)
        else:
            found.add(each.message_id)
            each.done()

    with running(consumer(warehouse, poll="50ms"), handle):
        wait_for(lambda: len(found) == 39)
        for batch in (100, 101):
            write(warehouse, "orders", [message(batch * 10 + queue, batch=batch, queue=queue) for queue in range(4)])
            time.sleep(1.5)
        assert {"m1000", "m1010"} & found == set()
        assert {f"m{batch}{queue}" for batch in (100, 101) for queue in (1, 2, 3)} <= found
        assert f"queue 0 of orders is not read further until message {held[0].position} is done" in caplog.text
        held[0].done()
        wait_for(lambda: len(found) == 47)


def test_no_new_message_is_read_while_too_many_wait_for_their_next_attempt(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subscription, "MOST_WAITING", 30)
    found: list[str] = []
    is_well = threading.Event()

    def handle(each: Any) -> None:
        found.append(each.message_id)
        if is_well.is_set():
            each.done()
        else:
            each.retry("4s")

    with running(consumer(warehouse, poll="50ms"), handle):
        wait_for(lambda: "40 messages of orders wait for their next attempt; the consumer reads" in caplog.text)
        write(warehouse, "orders", [message(100, batch=10)])
        time.sleep(1)
        assert "m100" not in found
        is_well.set()
        wait_for(lambda: "m100" in found)


def test_messages_that_nobody_wants_are_passed_without_a_pause(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare filter looked at one window a `poll`."""
    monkeypatch.setattr(topic, "BUDGET", 1)
    for number in range(100, 110):
        write(warehouse, "orders", [message(number, batch=number)])
    write(warehouse, "orders", [message(200, batch=200, tags="rare")])
    begun, messages = time.monotonic(), consumer(warehouse, poll="5s", tags="rare")
    with messages:
        assert next(messages).message_id == "m200"
    assert time.monotonic() - begun < 20


def windows_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Rows) for each in gc.get_objects())


def test_what_is_finished_behind_an_open_message_takes_no_memory(tmp_path: Path) -> None:
    for batch in range(10):  # a window each; those of queue 1 are never all finished before the first is
        write(tmp_path, "orders", [message(batch * 10 + queue, batch=batch, queue=queue) for queue in (0, 1, 1, 1)])
        before = windows_in_memory()
    found: list[Any] = []

    def handle(each: Any) -> None:
        found.append(each.message_id)
        if len(found) == 1:
            held.append(each)
        else:
            each.done()

    held: list[Any] = []
    with running(consumer(tmp_path, poll="50ms"), handle):
        for batch in range(10, 20):
            write(tmp_path, "orders", [message(batch * 10 + queue, batch=batch, queue=queue) for queue in (0, 1)])
            wait_for(lambda: f"m{batch}1" in found)  # noqa: B023
        wait_for(lambda: windows_in_memory() - before <= 3)
        held[0].done()
    assert rest(tmp_path) == []


def bytes_in_memory() -> int:
    gc.collect()
    return sum(each.table.nbytes for each in gc.get_objects() if isinstance(each, Rows))


def test_an_open_message_does_not_keep_what_was_read_with_it(tmp_path: Path) -> None:
    body, held = b"x" * 10_000, list[Any]()
    write(tmp_path, "orders", [message(n, batch=0, body=body) for n in range(10)])
    finished: list[str] = []

    def handle(each: Any) -> None:
        if each.source_offset % 10 == 5:
            held.append(each)
        else:
            finished.append(each.message_id)
            each.done()

    before = bytes_in_memory()
    with running(consumer(tmp_path), handle):
        for batch in range(1, 10):
            write(tmp_path, "orders", [message(batch * 10 + n, batch=batch, body=body) for n in range(10)])
            wait_for(lambda: len(finished) == 9 * batch + 9)  # noqa: B023
        wait_for(lambda: bytes_in_memory() - before < 350_000, 20)  # of 1 000 000
        assert [each.message_id for each in held] == [f"m{n}5" if n else "m5" for n in range(10)]
        assert all(each.body == body for each in held)
        for each in held:
            each.done()
    assert rest(tmp_path) == []


def test_messages_that_left_their_windows_stand_together() -> None:
    lanes, lane = Lanes(), Lane(Cursor(), Cursor())
    held: list[InFlight] = []
    for batch in range(200):
        rows = Rows(table([message(3 * batch + n, batch=batch) for n in range(3)]))
        done, last, left = (InFlight(lane, Chosen(rows, (n,))) for n in range(3))
        for each in (done, last, left):
            assert lanes.hand_over(each)
        for each in (done, last):
            lanes.finish(each, Attempt("DONE", 1, 0, None, None, 0))
        held.append(left)
        lanes.shrink()
    assert [each.value("message_id") for each in held] == [f"m{3 * batch + 2}" for batch in range(200)]
    assert len({each.chosen.rows for each in held}) == 1
    assert (lanes.open, lanes.unwritten) == (200, 400)
    for each in held:
        lanes.finish(each, Attempt("DONE", 1, 0, None, None, 0))
    assert (lanes.open, lanes.open_bytes) == (0, 0)


def test_a_value_that_is_read_while_its_row_moves_is_of_the_same_message() -> None:
    lanes, lane = Lanes(), Lane(Cursor(), Cursor())

    class MovedWhenRead(Rows):
        def __getattribute__(self, name: str) -> Any:
            if name == "value":
                lanes.shrink()
            return super().__getattribute__(name)

    rows = MovedWhenRead(table([message(n, batch=0) for n in range(3)]))
    handed = [InFlight(lane, Chosen(rows, (n,))) for n in range(3)]
    for each in handed:
        assert lanes.hand_over(each)
    for each in handed[:2]:
        lanes.finish(each, Attempt("DONE", 1, 0, None, None, 0))
    assert handed[2].value("message_id") == "m2"
    assert handed[2].chosen.rows is not rows


def test_a_message_that_garbage_collection_finishes_waits_for_no_lock() -> None:
    """Garbage collection runs in any thread, also in one that has the lock."""
    lanes, rows = Lanes(), Rows(table([message(0)]))
    handed = InFlight(Lane(Cursor(), Cursor()), Chosen(rows, (0,)))
    assert lanes.hand_over(handed)

    def collect() -> None:
        with lanes._lock:
            lanes.finish(handed, Attempt("DONE", 1, 0, None, None, 0))

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_only_what_is_finished_counts_as_finished_behind_an_open_message(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "MOST_KEPT_BYTES", 1)
    held: list[Any] = []
    with running(consumer(warehouse), held.append):
        wait_for(lambda: len(held) == 40)
        write(warehouse, "orders", [message(100 + queue, batch=1, queue=queue) for queue in range(4)])
        wait_for(lambda: len(held) == 44)
        for each in held:
            each.done()
    assert rest(warehouse) == []


def test_while_receipts_are_not_written_only_so_much_is_read(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "MOST_UNWRITTEN", 50)
    place, found = Path(f"{warehouse}_receipts"), list[str]()

    def handle(each: Any) -> None:
        found.append(each.message_id)
        each.done()

    with running(consumer(warehouse, lease="30s"), handle):
        wait_for(lambda: len(found) == 40)
        time.sleep(1.5)
        os.rename(place, f"{place}-away")
        for batch in range(1, 4):
            rows = [message(100 * batch + n, batch=batch) for n in range(40)]
            write(warehouse, "orders", rows)
        time.sleep(3)
        assert 40 < len(found) <= 40 + 50
        os.rename(f"{place}-away", place)
        wait_for(lambda: len(found) == 160)
    assert rest(warehouse) == []


def test_a_topic_remembers_no_files_that_are_gone(warehouse: Path) -> None:
    topic = Topic(str(warehouse / "topics" / "orders"))
    for batch in range(1, 6):
        reached = topic.ends()
        assert topic.next(reached) is None
        write(warehouse, "orders", [message(100 * batch + queue, batch=batch, queue=queue) for queue in range(4)])
        compact(warehouse, "orders")
        topic.refresh()
        assert len(topic._finished) <= 4
