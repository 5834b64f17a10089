"""A consumer that is killed with SIGKILL wherever it is: nothing is missed, and a local transaction makes it once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.killing import ENVIRONMENT, ROOT, kill
from tests.support.polling import wait_for
from tests.support.topic_table import message, write

import commitlake
from commitlake.clients.consumer.group import Group, Texts

LEASE = "2s"


class Instance:
    """A consumer in a process of its own."""

    started: list[Instance]

    def __init__(self, place: Path, name: str, **plan: object) -> None:
        arguments = {"group": "points", "lease": LEASE, "poll": "50ms"}
        given = {"database": str(place / "points.db"), "warehouse": str(place / "warehouse"), "name": name}
        told = json.dumps({**given, "arguments": arguments, **plan})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.recovery.test_consumer_kills", told],
            env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(self)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "READY\n"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=60)
        assert (output, self.process.returncode) == ("CLOSED\n", 0)


@pytest.fixture(autouse=True)
def started() -> Iterator[None]:
    Instance.started = []
    yield
    for instance in Instance.started:
        kill(instance.process)


def got(place: Path) -> list[tuple[str, int, str]]:
    with closing(sqlite3.connect(place / "points.db", timeout=60)) as db:
        try:
            return db.execute("SELECT position, attempt, instance FROM got ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:  # no table yet
            return []


def done(place: Path) -> set[str]:
    """Positions whose receipts say that they are done."""
    receipts = DeltaTable(str(place / "warehouse_receipts" / "receipts")).to_pyarrow_table()
    return {
        f"{row['source']}-{row['source_queue']}-{row['source_offset']}-{row['source_index']}"
        for row in receipts.to_pylist()
        if row["state"] == "DONE"
    }


def fill(place: Path, batches: range) -> list[str]:
    for batch in batches:
        rows = [message(10 * batch + n, batch=batch, queue=n % 3) for n in range(5)]
        write(place / "warehouse", "orders", [*rows, message(10_000 + batch, queue=batch % 3)])
    numbers = [f"half-0-{10 * batch + n}-0" for batch in batches for n in range(5)]
    return numbers + [f"messages-0-{10_000 + batch}-0" for batch in batches]


@pytest.mark.short
def test_a_consumer_that_is_killed_again_and_again_misses_nothing(tmp_path: Path) -> None:
    expected = fill(tmp_path, range(60))
    chance = random.Random(7)
    for number in range(6):
        running = Instance(tmp_path, f"i{number}", pause_s=0.005, failures={"k3": 2})
        seen = len(got(tmp_path))
        wait_for(lambda before=seen: len(got(tmp_path)) > before)  # type: ignore[misc]
        threading.Event().wait(chance.uniform(0, 1.5))
        kill(running.process)
    last = Instance(tmp_path, "last", failures={"k3": 2})
    wait_for(lambda: done(tmp_path) == set(expected), 60)
    last.stop()
    handed = got(tmp_path)
    assert ("half-0-3-0", 3) in {(position, attempt) for position, attempt, _ in handed}
    assert len(handed) < 4 * len(expected), "what was done long before comes again"
    with closing(sqlite3.connect(tmp_path / "points.db")) as db:
        booked = [row[0] for row in db.execute("SELECT position FROM booked")]
    assert sorted(booked) == sorted(expected)


def test_the_queues_of_a_killed_instance_go_to_the_others(tmp_path: Path) -> None:
    fill(tmp_path, range(2))
    first, second = Instance(tmp_path, "a"), Instance(tmp_path, "b")
    wait_for(lambda: len(got(tmp_path)) >= 12)
    threading.Event().wait(3)  # both have their share now
    kill(first.process)
    expected = fill(tmp_path, range(2, 6))
    wait_for(lambda: set(expected) <= {position for position, *_ in got(tmp_path)}, 30)
    second.stop()


@pytest.mark.parametrize(
    "dies", [(1, "before"), (1, "after"), (2, "before"), (2, "after")], ids=lambda dies: "{} {}".format(*dies)
)
def test_an_instance_that_is_killed_about_a_commit_of_its_leases_keeps_none(
    tmp_path: Path, dies: tuple[int, str]
) -> None:
    """The first takes queues, the next one moves cursors, after what it read was handed over and done."""
    expected = fill(tmp_path, range(4))
    dying = Instance(tmp_path, "dying", dies=dies)
    assert dying.process.wait(60) == -signal.SIGKILL
    other = Instance(tmp_path, "other")
    wait_for(lambda: done(tmp_path) == set(expected), 60)
    more = fill(tmp_path, range(4, 6))
    wait_for(lambda: done(tmp_path) == {*expected, *more}, 60)
    other.stop()


def test_an_instance_that_was_paused_finds_that_others_have_its_queues(tmp_path: Path) -> None:
    """It hands nothing over before it has looked who owns its queues now."""
    fill(tmp_path, range(2))
    paused = Instance(tmp_path, "paused", pause_s=0.01)
    wait_for(lambda: len(got(tmp_path)) >= 12)
    threading.Event().wait(1.5)  # its receipts are written
    paused.process.send_signal(signal.SIGSTOP)
    expected = fill(tmp_path, range(2, 6))
    other = Instance(tmp_path, "other")
    wait_for(lambda: set(expected) <= {position for position, *_ in got(tmp_path)}, 30)
    threading.Event().wait(1.5)
    paused.process.send_signal(signal.SIGCONT)
    more = fill(tmp_path, range(6, 9))
    wait_for(lambda: set(more) <= {position for position, *_ in got(tmp_path)}, 30)
    paused.stop()
    other.stop()
    handed = [position for position, *_ in got(tmp_path) if position in expected]
    assert len(handed) == len(set(handed)) == len(expected)


@pytest.mark.soak
def test_forty_kills_of_three_instances(tmp_path: Path) -> None:
    expected = fill(tmp_path, range(20))
    chance = random.Random(8)
    running = {number: Instance(tmp_path, f"{number}", pause_s=0.001) for number in range(3)}
    for kills in range(40):
        expected += fill(tmp_path, range(20 + kills, 21 + kills))
        threading.Event().wait(chance.uniform(0, 1))
        victim = chance.randrange(3)
        kill(running[victim].process)
        running[victim] = Instance(tmp_path, f"{victim}", pause_s=0.001)
    wait_for(lambda: {position for position, *_ in got(tmp_path)} == set(expected), 120)
    for instance in running.values():
        instance.stop()


def die_at(commit: int, when: str) -> None:
    """End by SIGKILL `before` or `after` a commit of the group's leases, counted from 1."""
    replace, count = Group._replace, 0

    def replace_or_die(self: Group, before: Texts, after: Texts) -> None:
        nonlocal count
        count += 1
        if (count, when) == (commit, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(self, before, after)
        if count == commit:
            os.kill(os.getpid(), signal.SIGKILL)

    Group._replace = replace_or_die  # type: ignore[method-assign]


def main() -> None:
    plan = json.loads(sys.argv[1])
    if "dies" in plan:
        die_at(*plan["dies"])
    with sqlite3.connect(plan["database"], timeout=60, isolation_level=None) as db:
        db.execute("CREATE TABLE IF NOT EXISTS got (position TEXT, attempt INT, instance TEXT)")
        db.execute("CREATE TABLE IF NOT EXISTS booked (position TEXT)")
        books = sqlite3.connect(plan["database"], timeout=60)
        with commitlake.consume({"warehouse": plan["warehouse"]}, "orders", **plan["arguments"]) as messages:
            print("READY", flush=True)
            for message in messages:
                db.execute("INSERT INTO got VALUES (?, ?, ?)", [message.position, message.attempt, plan["name"]])
                with message.once(books, create=True) as is_new:
                    if is_new:
                        books.execute("INSERT INTO booked VALUES (?)", [message.position])
                time.sleep(plan.get("pause_s", 0))
                if message.attempt <= plan.get("failures", {}).get(message.keys, 0):
                    message.retry("200ms")
                else:
                    message.done()
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main()
