"""RocketMQ's own clients for Java, Node and Go, unchanged. What can't be fetched is skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.gateway import certified, gateway, outcomes
from tests.support.killing import ROOT, kill
from tests.support.namespace import check, published
from tests.support.polling import wait_for
from tests.support.running import fetch
from tests.support.tables import rows
from tests.support.topic_table import message, write

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator
    from commitlake.kafka.embedded import EmbeddedBroker

SUPPORT = ROOT / "tests" / "support"
SOURCES = SUPPORT / "java"
Client = Callable[[Path], dict[str, list[str]]]


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """The client's."""
    fetch("mvn", "-q", "-B", "-f", str(SOURCES), "dependency:copy-dependencies", f"-DoutputDirectory={tmp_path}")
    return tmp_path


def test_the_java_client_sends_commits_and_answers_a_check(
    coordinator: Coordinator, jars: Path, topic: str, tmp_path: Path
) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    keys = tmp_path / "keys"
    keys.write_text("shop: s3cret\n")
    with gateway(kafka.bootstrap_servers, kafka.topic_prefix, f"--access-keys=file:{keys}") as running:
        source = str(SOURCES / "Shop.java")
        command = ["java", "-cp", f"{jars}/*", source, f"127.0.0.1:{running.port}", topic, "shop", "s3cret"]
        shop = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
        )
        try:
            assert shop.stdin is not None and shop.stdout is not None
            ids = dict(shop.stdout.readline().split() for _ in range(6))
            assert shop.stdout.readline() == "sent\n"
            assert shop.stdout.readline().startswith("check lost TagA [k")

            def ends() -> dict[str, tuple[str, str]]:
                mine = [row for row in rows(warehouse, "transactions") if row["topic"] == topic]
                return {row["message_id"]: (row["state"], row["reason"]) for row in mine}

            expected = {
                ids["paid"]: ("COMMITTED", "DIRECT"),
                ids["declined"]: ("ROLLED_BACK", "DIRECT"),
                ids["lost"]: ("COMMITTED", "CHECK"),
            }
            wait_for(lambda: ends() == expected, why=ends)
            wait_for(lambda: len(rows(warehouse, f"topics/{topic}")) == 5)
            shown = {row["message_id"]: row for row in rows(warehouse, f"topics/{topic}")}
            assert set(shown) == {ids[name] for name in ("normal", "fifo", "due", "paid", "lost")}
            assert bytes(shown[ids["fifo"]]["sharding_key"]) == b"customer-4"
            assert dict(shown[ids["normal"]]["properties"]) == {"region": "Zürich"}
            shop.stdin.close()
            assert shop.wait(60) == 0
        finally:
            kill(shop)


def node(place: Path) -> dict[str, list[str]]:
    """The programs for Node, with the client."""
    shutil.copytree(SUPPORT / "node", place)
    fetch("npm", "install", "--silent", cwd=place)
    return {name: ["node", str(place / f"{name}.js")] for name in ("shop", "points")}


def go(place: Path) -> dict[str, list[str]]:
    """The program for Go, with the client, which writes its log into the folder."""
    shutil.copytree(SUPPORT / "go", place)
    fetch("go", "mod", "tidy", cwd=place)
    subprocess.run(["go", "build"], cwd=place, check=True)
    log = ["env", f"rocketmq.client.logRoot={place}"]
    return {name: [*log, str(place / "gateway-client"), name] for name in ("shop", "points")}


@pytest.mark.parametrize(("client", "is_tls", "recalls"), [(node, False, ["RECALL"]), (go, True, [])])
def test_a_client_sends_commits_and_answers_a_check(
    broker: EmbeddedBroker, tmp_path: Path, client: Client, is_tls: bool, recalls: list[str]
) -> None:
    kafka, command = published(broker), client(tmp_path / "client")["shop"]
    with gateway(kafka.servers, kafka.prefix, *(certified(tmp_path) if is_tls else ())) as running:
        whole = [*command, f"127.0.0.1:{running.port}", "orders"]
        pipe = subprocess.PIPE
        shop = subprocess.Popen(
            whole, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path / "client", start_new_session=True
        )
        try:
            assert shop.stdin is not None and shop.stdout is not None
            assert shop.stdout.readline() == "sent\n"
            kafka.ask(check("m", "orders", tags="TagA"))
            assert shop.stdout.readline() == "check body TagA\n"
            wait_for(kafka.answers)
            shop.stdin.close()
            assert shop.wait(60) == 0
        finally:
            kill(shop)
    assert {(record.key, record.value) for record in kafka.read("messages")} == {
        (None, b"normal"),
        (b"customer-4", b"fifo"),
        (None, b"delayed"),
    }
    assert [record.value for record in kafka.read("half")] == [b"half"]
    assert sorted(getattr(op, "decision", "RECALL") for op in kafka.ops()) == ["COMMIT", "COMMIT", *recalls]


@pytest.mark.short
def test_the_java_client_consumes(broker: EmbeddedBroker, jars: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("shop: s3cret\n")
    command = ["java", "-cp", f"{jars}/*", str(SOURCES / "Points.java")]
    _consumes(broker, tmp_path, command, "shop", "s3cret", "3", option=f"--access-keys=file:{keys}")


@pytest.mark.parametrize("client", [node, go])
def test_a_client_consumes(broker: EmbeddedBroker, tmp_path: Path, client: Client) -> None:
    _consumes(broker, tmp_path, client(tmp_path / "client")["points"], "3")


def _consumes(broker: EmbeddedBroker, place: Path, command: list[str], *arguments: str, option: str = "") -> None:
    """A simple consumer receives each of three messages twice; then a push consumer of one of them fails once."""
    kafka, warehouse = published(broker), place / "warehouse"
    names = [f"01{n:032X}" for n in range(3)]  # the client for Java reads no other ids than its own kind
    rows_ = [message(n, queue=n % 2, message_id=names[n], tags="paid" if n == 2 else "new") for n in range(3)]
    write(warehouse, "orders", rows_)
    with gateway(kafka.servers, kafka.prefix, f"--set=warehouse={warehouse}", *filter(None, [option])) as running:
        whole = [*command, f"127.0.0.1:{running.port}", "orders", *arguments]
        pipe = subprocess.PIPE
        points = subprocess.Popen(whole, stdin=pipe, stdout=pipe, text=True, cwd=place, start_new_session=True)
        try:
            assert points.stdin is not None and points.stdout is not None
            said = [points.stdout.readline().split() for _ in range(8)]
            assert sorted(said[:6]) == sorted(["simple", names[n], str(n), str(t)] for n in range(3) for t in (1, 2))
            assert said[6:] == [["push", names[2], "2", "1"], ["push", names[2], "2", "2"]]
            wait_for(lambda: [state for _, state, _ in outcomes(warehouse)].count("DONE") == 4)
            points.stdin.close()
            assert points.wait(60) == 0
            assert running.end() == 0
        finally:
            kill(points)
