"""A consumer and its process: signals, forks, what was closed, what can't go to another process."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.topic_table import consumer, rest

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
    command = [sys.executable, "-c", PRELUDE + program, str(warehouse)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)


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
        assert told.startswith("waits for the handlers of <ReceivedMessage orders half-0-")
        assert "a second signal ends without them" in told
        running.send_signal(signal.SIGINT)
        begun = time.monotonic()
        rest_told = running.communicate(timeout=30)[1]
        assert time.monotonic() - begun < 15
        assert running.returncode == 130
        assert "Traceback" not in rest_told
    assert len(rest(warehouse)) == 40
