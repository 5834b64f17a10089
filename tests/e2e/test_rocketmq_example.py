"""RocketMQ's transaction example, ported, a trace and batches; and docs/how-to/java.md, word for word.

Of the page only the ports and the Python are others. The example of scheduled messages: tests/e2e/test_notebook.py.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support import tables
from tests.support.collector import Collector, parent, traceparent
from tests.support.killing import ROOT, kill
from tests.support.namespace import Listener
from tests.support.polling import wait_for, wait_until_equal
from tests.support.running import Program, fetch
from tests.support.tables import rows

import commitlake
from commitlake import DefaultMQProducer, LocalTransactionState, Message, TransactionMQProducer
from commitlake.clients import tracing
from commitlake.coordinator.coordinator import Coordinator

EXAMPLES = ROOT / "notebooks" / "examples"


def kafka_of(coordinator: Coordinator) -> dict[str, Any]:
    """What a producer must know of it."""
    kafka = coordinator.config.kafka
    return {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}


def test_ten_unknown_transactions_end_by_their_checks(coordinator: Coordinator) -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "rocketmq_transaction.py"))
    warehouse, listener = coordinator.config.warehouse, example["TransactionListenerImpl"]()
    with TransactionMQProducer(example["GROUP"], listener, **kafka_of(coordinator)) as producer:
        ids = example["send_ten"](producer)
        wait_for(lambda: len(ended(warehouse, example["GROUP"])) == 10)

    ends = {row["transaction_id"]: row for row in ended(warehouse, example["GROUP"])}
    found = [(ends[one]["state"], ends[one]["reason"]) for one in ids]
    discarded, committed, rolled_back = ("DISCARDED", "CHECK_MAX"), ("COMMITTED", "CHECK"), ("ROLLED_BACK", "CHECK")
    assert found == [(discarded, committed, rolled_back)[i % 3] for i in range(10)]
    assert {ends[one]["checks"] for one in ids[::3]} == {coordinator.config.transaction.check_max}

    wait_for(lambda: len(visible(warehouse, example["TOPIC"])) >= 3)
    seen = visible(warehouse, example["TOPIC"])
    assert sorted((row["body"], row["tags"], row["keys"]) for row in seen) == [
        (f"Hello RocketMQ {i}".encode(), example["TAGS"][i % 5], f"KEY{i}") for i in (1, 4, 7)
    ]


def test_a_trace_goes_from_the_send_by_half_check_and_topic_to_the_consumer(
    coordinator: Coordinator, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing._SWITCH, "on", None)
    collector = Collector()
    commitlake.trace(collector.provider)
    warehouse = coordinator.config.warehouse
    with TransactionMQProducer("traced", Listener(LocalTransactionState.UNKNOW), **kafka_of(coordinator)) as producer:
        with collector.tracer.start_as_current_span("request"):
            producer.send_message_in_transaction(Message(topic, "half"))
            producer.send([Message(topic, "batch")])
        wait_for(lambda: len(visible(warehouse, topic)) == 2)

    half, batch = (span for span in collector.spans if span.name == f"send {topic}")
    assert [parent(span) for span in (half, batch)] == [traceparent(collector.one("request"))] * 2
    shown = {row["body"]: dict(row["properties"]) for row in visible(warehouse, topic)}
    assert shown == {b"half": {"traceparent": traceparent(half)}, b"batch": {"traceparent": traceparent(batch)}}
    (stored,) = [row for row in tables.rows(warehouse, "half") if row["producer_group"] == "traced"]
    assert dict(stored["properties"]) == {"traceparent": traceparent(half)}
    assert parent(collector.one(f"check {topic}")) == traceparent(half)

    commitlake.consume(coordinator.config, topic, group="traced", follow=False).run(lambda _: None)
    handled = [parent(span) for span in collector.spans if span.name == f"process {topic}"]
    assert sorted(map(str, handled)) == sorted([traceparent(half), traceparent(batch)])


def ended(warehouse: str, group: str) -> list[dict[str, Any]]:
    return [row for row in tables.rows(warehouse, "transactions") if row["producer_group"] == group]


def visible(warehouse: str, topic: str) -> list[dict[str, Any]]:
    return tables.rows(warehouse, f"topics/{topic}")


def visible_batches(warehouse: str, topic: str) -> list[dict[tuple[int, int], list[dict[str, Any]]]]:
    """The batches that a reader sees at each version of a topic's table: members in order, by Kafka record."""
    table = tables.opened(warehouse, f"topics/{topic}")
    if table is None:
        return []
    versions = []
    for version in range(table.version() + 1):
        batches: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        rows = DeltaTable(table.table_uri, version=version).to_pyarrow_table().to_pylist()
        for row in sorted(rows, key=lambda row: row["source_index"]):
            batches[row["source_queue"], row["source_offset"]].append(row)
        versions.append(batches)
    return versions


def test_batches_are_whole_in_every_version_of_the_table(coordinator: Coordinator, topic: str) -> None:
    sent, warehouse = {}, coordinator.config.warehouse
    with DefaultMQProducer("batches", **kafka_of(coordinator)) as producer:
        for number in range(10):
            members = [
                Message(topic, f"{number}-{at}", tags=f"Tag{at}", keys=f"KEY{at}", properties={"buyer": f"buyer {at}"})
                for at in range(10)
            ]
            result = producer.send(members)
            sent[result.queue_id, result.queue_offset] = (number, result.msg_id.split(","))
    wait_for(lambda: len((visible_batches(warehouse, topic) or [{}])[-1]) == len(sent))
    versions = visible_batches(warehouse, topic)
    assert {len(members) for batches in versions for members in batches.values()} == {10}
    for place, shown in versions[-1].items():
        number, ids = sent[place]
        assert [row["message_id"] for row in shown] == ids
        assert [row["source_index"] for row in shown] == list(range(10))
        assert [row["body"] for row in shown] == [f"{number}-{at}".encode() for at in range(10)]
        assert [(row["tags"], row["keys"]) for row in shown] == [(f"Tag{at}", f"KEY{at}") for at in range(10)]
        assert [dict(row["properties"]) for row in shown] == [{"buyer": f"buyer {at}"} for at in range(10)]
        assert len({(row["stored_at"], row["born_at"], row["visible_at"], row["queue_id"]) for row in shown}) == 1


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The example with what `npm install` brings."""
    place = shutil.copytree(EXAMPLES / "node", tmp_path / "node", ignore=shutil.ignore_patterns("node_modules"))
    fetch("npm", "install", "--silent", cwd=place)
    return place


@pytest.mark.soak  # npm fetches a package
def test_a_node_client_commits_rolls_back_and_answers_a_check(coordinator: Coordinator, installed: Path) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    command = ["node", "transaction.js", kafka.bootstrap_servers, kafka.topic_prefix]
    client = subprocess.Popen(command, cwd=installed, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert client.stdout is not None
        sent = dict(client.stdout.readline().split()[:2] for _ in range(3))

        def ends() -> dict[str, tuple[str, str]]:
            mine = [row for row in tables.rows(warehouse, "transactions") if row["producer_group"] == "node-service"]
            return {row["transaction_id"]: (row["state"], row["reason"]) for row in mine}

        wait_for(lambda: len(ends()) == 3)
        assert ends() == {
            sent["paid"]: ("COMMITTED", "DIRECT"),
            sent["declined"]: ("ROLLED_BACK", "DIRECT"),
            sent["late"]: ("COMMITTED", "CHECK"),
        }
        client.send_signal(signal.SIGTERM)
        assert client.wait(30) == 0
    finally:
        kill(client)


PAGE = (ROOT / "docs" / "how-to" / "java.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.strip().splitlines()]
(COMPARISON,) = [text for kind, text in BLOCKS if kind == "python"]
EXAMPLE = Path("notebooks", "examples", "java")
KAFKA, GATEWAY = "19092", "8081"
LONG_S = 300
"""Six JVMs start beside each other."""
ORDERS = [f"{instance}-{n}" for instance in "ab" for n in (1, 2, 4, 5)]
"""Those that are paid; the bank declines each third."""


class Terminal(Program):
    def awaited(self, pattern: str) -> str:
        """What the group of a pattern matches, once it has said so."""
        found = wait_for(lambda: re.search(pattern, self.said), LONG_S, lambda: self.said)
        return found[1]


class Tutorial:
    """The page's commands, in a place that looks like a clone."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ports = {KAFKA: "0", GATEWAY: "0"}  # free ones; READY says which
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "COMMITLAKE__WAREHOUSE": str(place / "warehouse"),
            "COMMITLAKE__CHECKPOINTS": str(place / "checkpoints"),
        }
        self.terminals: list[Terminal] = []
        shutil.copytree(ROOT / EXAMPLE, place / EXAMPLE, ignore=shutil.ignore_patterns("target", "*.db"))

    def start(self, pattern: str) -> Terminal:
        """Run the command in which a pattern is, and let it go on."""
        command = self._command(pattern)
        cwd = self.place / EXAMPLE if command[0] in ("java", "mvn") else ROOT
        self.terminals.append(Terminal(command, cwd=cwd, env=self.environment))
        return self.terminals[-1]

    def run(self, pattern: str, **placeholders: str) -> str:
        """What the command prints; it must end well."""
        command = [placeholders.get(word, word) for word in self._command(pattern)]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def agrees(self) -> bool:
        """Whether the page's comparison prints True."""
        command = [sys.executable, "-c", COMPARISON]
        done = subprocess.run(command, cwd=self.place, capture_output=True, text=True, check=True)
        return done.stdout == "True\n"

    def book(self, name: str, condition: str = "true") -> list[tuple[str, str]]:
        """Orders of a database, with the messages that brought them; each as often as it is there."""
        with sqlite3.connect(self.place / EXAMPLE / f"{name}.db") as db:
            return sorted(db.execute(f"SELECT order_id, message_id FROM {name} WHERE {condition}"))

    def shown(self) -> list[tuple[str, str]]:
        return sorted((row["keys"], row["message_id"]) for row in rows(self.place / "warehouse", "topics/paid-orders"))

    def ends(self) -> Counter[tuple[str, str]]:
        """How the transactions ended."""
        return Counter((row["state"], row["reason"]) for row in rows(self.place / "warehouse", "transactions"))

    def _command(self, pattern: str) -> list[str]:
        (line,) = [line for line in COMMANDS if re.search(pattern, line)]
        for port, taken in self.ports.items():
            line = line.replace(port, taken)
        return shlex.split(line.replace(".venv/bin/commitlake", f"{sys.executable} -m commitlake.tools.cli"))


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Tutorial]:
    """Maven has fetched what it needs; coordinator, gateway and consumers run."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    running = Tutorial(tmp_path)
    try:
        maven = running.start("^mvn ")
        if maven.process.wait(LONG_S):
            pytest.skip(f"the Java client can't be fetched: {maven.said[-200:]}")
        running.ports[KAFKA] = running.start(r"spark-submit\.sh run").awaited(r"READY.* kafka=127\.0\.0\.1:(\d+)")
        running.ports[GATEWAY] = running.start("commitlake gateway").awaited(r"READY .* (\d+)\n")
        running.start(r"Points\.java")
        running.start(r"Logistics\.java")
        yield running
    finally:
        for terminal in reversed(running.terminals):
            kill(terminal.process)


@pytest.mark.soak  # Maven fetches packages
def test_another_instance_answers_for_a_killed_one_and_all_four_books_agree(tutorial: Tutorial) -> None:
    a = tutorial.start(" a 5$")
    a.awaited("(answers checks)")
    b = tutorial.start(" b 5 dies$")
    died = b.awaited(r"b-5 PAID (\w+), and killed")
    assert b.process.wait(60) == -signal.SIGKILL
    assert a.awaited(r"check of \[b-5\] (\w+): PAID") == died
    again = tutorial.start(" b 5$")
    again.awaited("(answers checks)")
    assert again.said.count(" NOT PLACED ") == 5

    ends = {("COMMITTED", "DIRECT"): 7, ("COMMITTED", "CHECK"): 1, ("ROLLED_BACK", "DIRECT"): 7}
    wait_until_equal(tutorial.ends, Counter(ends), LONG_S)
    paid = tutorial.book("orders", "state = 'PAID'")
    assert [order for order, _ in paid] == ORDERS
    assert ("b-5", died) in paid
    wait_until_equal(tutorial.shown, paid, LONG_S)
    wait_until_equal(lambda: [tutorial.book("points"), tutorial.book("shipments")], [paid, paid], LONG_S)
    assert tutorial.agrees()

    assert "COMMITTED" in tutorial.run("tx list")
    history = tutorial.run("tx show", MESSAGE_ID=died)
    assert "check" in history


def test_every_command_of_the_page_is_run() -> None:
    run = (
        *(r"^mvn ", r"spark-submit\.sh run", "commitlake gateway", r"Points\.java", r"Logistics\.java"),
        *(" a 5$", " b 5 dies$", " b 5$", "tx list", "tx show"),
    )
    others = [line for line in COMMANDS if not any(re.search(pattern, line) for pattern in run)]
    assert others == [".venv/bin/pip install -e '.[gateway]' -c constraints.txt", f"cd {EXAMPLE}"]
    assert len(COMMANDS) == len(run) + len(others)
