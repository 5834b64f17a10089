"""RocketMQ's own clients for Python, Java, Node and Go, unchanged, with real gateways, Kafka, and a real coordinator.

What can't be fetched is skipped.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rocketmq
from tests.support.gateway import (
    certified,
    client,
    client_message,
    gateway,
    outcomes,
    push_consumer,
    simple_consumer,
    transaction,
)
from tests.support.killing import ROOT, kill
from tests.support.namespace import Namespace, check, published
from tests.support.polling import wait_for
from tests.support.running import fetch
from tests.support.tables import rows
from tests.support.topic_table import message, write
from tests.support.topic_table import message as row

from commitlake.clients.gateway import server
from commitlake.clients.gateway.producers import SEND_MS
from commitlake.clients.producer.confluent import ConfluentEngine
from commitlake.clients.producer.kafka_python import KafkaPythonEngine
from commitlake.clients.producer.link import KafkaLink
from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol.encoding import Position

COMMIT, ROLLBACK = rocketmq.TransactionResolution.COMMIT, rocketmq.TransactionResolution.ROLLBACK


@pytest.fixture
def port(kafka: Namespace) -> Iterator[int]:
    """That of a gateway."""
    with gateway(kafka.servers, kafka.prefix) as running:
        yield running.port


def headers(record: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


@pytest.mark.short
def test_normal_delayed_and_fifo_messages(kafka: Namespace, port: int) -> None:
    due = int(time.time()) + 3600
    with client(port, "orders") as producer:
        plain = client_message("orders", b"plain", tag="TagA", keys="KEY17")
        plain.add_property("region", "Zürich")
        sent = producer.send(plain)
        delayed = producer.send(client_message("orders", b"delayed", delivery_timestamp=due))
        assert producer.recall_message("orders", delayed.recall_handle) == delayed.message_id
        for number in range(20):
            producer.send(client_message("orders", b"%d" % number, message_group="customer-4"))
    records = kafka.read("messages")
    found = {record.value: headers(record) for record in records}
    assert found[b"plain"].items() >= {
        "REAL_TOPIC": "orders", "UNIQ_KEY": sent.message_id, "TAGS": "TagA", "KEYS": "KEY17", "region": "Zürich",
        "PGROUP": "orders",
    }.items()  # fmt: skip
    assert found[b"delayed"]["TIMER_DELIVER_MS"] == str(due * 1_000)
    fifo = [record for record in records if record.key == b"customer-4"]
    assert len({record.partition for record in fifo}) == 1
    assert [int(record.value) for record in fifo] == list(range(20))
    (recall,) = kafka.ops()
    assert (recall.msg_id, recall.topic) == (delayed.message_id, "orders")


def test_kafka_python_sends_a_transaction_too(kafka: Namespace) -> None:
    """Where the other engine is installed, too, it is not the default."""
    with (
        gateway(kafka.servers, kafka.prefix, "--engine=kafka-python") as running,
        client(running.port, "orders", check=lambda _: COMMIT) as producer,
    ):
        transaction(producer, client_message("orders", b"half")).commit()
    (half,) = kafka.read("half")
    (op,) = kafka.ops()
    assert (op.decision, op.half_messages) == ("COMMIT", (Position(half.partition, half.offset),))


@pytest.mark.parametrize(("engine", "sends"), [("confluent", ConfluentEngine), ("kafka-python", KafkaPythonEngine)])
def test_the_engine_that_was_asked_for_gives_up_what_a_call_has_given_up(
    kafka: Namespace, monkeypatch: pytest.MonkeyPatch, engine: str, sends: type
) -> None:
    links: list[KafkaLink] = []

    class Watched(KafkaLink):
        """One that the test can look into."""

        def start(self, timeout_ms: int) -> None:
            super().start(timeout_ms)
            links.append(self)

    async def look() -> None:
        async with server.opened(kafka.config, server.Entrance(listen="127.0.0.1:0"), engine):
            sending = links[0]._started()._engine  # type: ignore[attr-defined]
            assert isinstance(sending, ConfluentEngine | KafkaPythonEngine)
            timed = sending._shared if isinstance(sending, ConfluentEngine) else sending
            assert (type(sending), timed._timeout_ms) == (sends, SEND_MS)

    monkeypatch.setattr(server, "KafkaLink", Watched)
    asyncio.run(look())


def test_the_documents_programs_send_a_transaction_and_receive_it(
    coordinator: Coordinator, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    text = (ROOT / "docs" / "how-to" / "gateway.md").read_text()
    sends, receives = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with gateway(kafka.bootstrap_servers, kafka.topic_prefix, f"--set=warehouse={warehouse}") as running:
        for program in (sends, receives):
            exec(program.replace("8081", str(running.port)).replace('"orders"', f'"{topic}"'), {})
            wait_for(lambda: len(rows(warehouse, f"topics/{topic}")) == 1)
    assert capsys.readouterr().out == "two espressos\n"


def test_another_gateway_ends_what_a_killed_one_began(kafka: Namespace) -> None:
    with (
        gateway(kafka.servers, kafka.prefix) as first,
        client(first.port, "orders", check=lambda _: COMMIT) as producer,
    ):
        begun = transaction(producer, client_message("orders", b"half"))
        first.kill()
        with gateway(kafka.servers, kafka.prefix, port=first.port):
            wait_for(lambda: _done(begun.commit))
    (half,) = kafka.read("half")
    (op,) = kafka.ops()
    assert (op.decision, op.from_check) == ("COMMIT", False)
    assert op.half_messages == (Position(half.partition, half.offset),)
    assert (op.transaction_id, op.producer_group) == (headers(half)["__transactionId__"], headers(half)["PGROUP"])


def _done(call: Any) -> bool:
    try:
        call()
    except Exception:
        return False
    return True


@pytest.mark.short
def test_a_check_is_asked_and_its_answer_is_an_op(kafka: Namespace, port: int) -> None:
    asked: list[Any] = []

    def answer(given: Any) -> Any:
        asked.append(given)
        return COMMIT if given.properties.get("paid") == "yes" else ROLLBACK

    with client(port, "orders", check=answer):
        kafka.ask(check("paid", "orders", properties={"paid": "yes"}, tags="TagA", keys="k1 k2", check_id="1-5-0-1"))
        kafka.ask(check("open", "orders", check_id="1-6-0-1"))
        wait_for(lambda: len(kafka.answers()) == 2)
        wait_for(lambda: kafka.committed("orders") == 2)
    found = {op.transaction_id: (op.decision, op.check_id, op.producer_group) for op in kafka.answers()}
    assert found == {"paid": ("COMMIT", "1-5-0-1", "orders"), "open": ("ROLLBACK", "1-6-0-1", "orders")}
    assert {op.half_messages for op in kafka.answers()} == {(Position(1, 5), Position(0, 9))}
    first = next(given for given in asked if given.message_id == "paid")
    assert (first.topic, first.body, first.tag, first.keys) == ("orders", b"body", "TagA", {"k1", "k2"})
    assert not first.corrupted


def test_a_group_of_its_own_is_asked_once_its_producer_has_sent(kafka: Namespace, port: int) -> None:
    with client(port, "orders", check=lambda _: ROLLBACK) as producer:
        given = client_message("orders", b"half")
        given.add_property("PGROUP", "order-service")
        transaction(producer, given)
        kafka.ask(check("m", "order-service"))
        wait_for(lambda: [op.producer_group for op in kafka.answers()] == ["order-service"])


def test_a_gateway_killed_before_the_answer_leaves_the_check_to_the_next(kafka: Namespace) -> None:
    asked: list[str] = []

    def answer(given: Any) -> Any:
        asked.append(given.message_id)
        if len(asked) == 1:
            first.kill()
        return COMMIT

    with gateway(kafka.servers, kafka.prefix) as first:
        with client(first.port, "orders", check=answer):
            kafka.ask(check("m", "orders"))
            wait_for(lambda: first.process.poll() is not None)
        assert kafka.answers() == []
        with gateway(kafka.servers, kafka.prefix) as second, client(second.port, "orders", check=answer):
            wait_for(kafka.answers)
    assert [op.decision for op in kafka.answers()] == ["COMMIT"]
    assert asked == ["m", "m"]


@pytest.mark.short
def test_access_keys_and_a_clean_end(kafka: Namespace, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("shop: s3cret\n")
    with gateway(kafka.servers, kafka.prefix, f"--access-keys=file:{keys}") as running:
        with client(running.port, "orders", keys=("shop", "s3cret")) as producer:
            assert producer.send(client_message("orders", b"signed")).message_id
        with client(running.port, keys=("shop", "wrong")) as stranger, pytest.raises(Exception, match="route"):
            stranger.send(client_message("orders", b"forged"))
        assert running.end() == 0
    assert [record.value for record in kafka.read("messages")] == [b"signed"]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Four messages in two queues."""
    place = tmp_path / "warehouse"
    write(
        place, "orders", [row(n, queue=n % 2, tags="paid" if n else "new", properties={"n": str(n)}) for n in range(4)]
    )
    return place


def received(consumer: Any, count: int, hidden_s: int = 60) -> list[Any]:
    """So many messages."""
    found: list[Any] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += consumer.receive(count - len(found), hidden_s)
    return found


def test_a_simple_consumer_receives_acknowledges_and_takes_its_time(kafka: Namespace, warehouse: Path) -> None:
    at = f"--set=warehouse={warehouse}"
    with gateway(kafka.servers, kafka.prefix, at) as running, simple_consumer(running.port, "orders") as consumer:
        got = received(consumer, 4)
        assert sorted((each.message_id, each.tag, each.body) for each in got) == [
            (f"m{n}", "paid" if n else "new", b"%d" % n) for n in range(4)
        ]
        assert not any(each.corrupted for each in got)
        assert {each.delivery_attempt for each in got} == {1}
        consumer.change_invisible_duration(got[0], 1)
        consumer.change_invisible_duration(got[1], 120)
        for each in got[1:]:
            consumer.ack(each)
        (again,) = received(consumer, 1)
        assert (again.message_id, again.delivery_attempt) == (got[0].message_id, 2)
        with pytest.raises(Exception, match="receipt handle"):
            consumer.ack(got[0])
        consumer.ack(again)
        assert consumer.receive(1, 60) == []
    wait_for(lambda: sum(state == "DONE" for _, state, _ in outcomes(warehouse)) == 4)


def test_a_gateway_killed_before_the_acknowledgement_leaves_the_messages_to_the_next(
    kafka: Namespace, warehouse: Path
) -> None:
    at = f"--set=warehouse={warehouse}"
    with gateway(kafka.servers, kafka.prefix, at) as first, simple_consumer(first.port, "orders") as consumer:
        got = received(consumer, 4)
        consumer.ack(got[0])
        wait_for(lambda: outcomes(warehouse) == [(got[0].message_id, "DONE", 1)])
        first.kill()
        with (
            gateway(kafka.servers, kafka.prefix, at) as second,
            simple_consumer(second.port, "orders", wait_s=10) as other,
        ):
            again = received(other, 3)
            for each in again:
                other.ack(each)
            assert second.end() == 0
            assert outcomes(warehouse) == [(f"m{n}", "DONE", 1) for n in range(4)]
    assert sorted(each.message_id for each in again) == sorted(each.message_id for each in got[1:])


def test_from_a_send_to_a_push_consumer(coordinator: Coordinator, topic: str) -> None:
    """With a coordinator: what was rolled back is not seen."""
    kafka, got = coordinator.config.kafka, dict[bytes, Any]()
    at = f"--set=warehouse={coordinator.config.warehouse}"

    def consume(given: Any) -> bool:
        got[given.body] = given
        return True

    with (
        gateway(kafka.bootstrap_servers, kafka.topic_prefix, at) as running,
        client(running.port, topic, check=lambda _: rocketmq.TransactionResolution.COMMIT) as producer,
        push_consumer(running.port, topic, consume),
    ):
        normal = producer.send(client_message(topic, b"normal", tag="TagA", keys="KEY17", message_group="customer-4"))
        transaction(producer, client_message(topic, b"declined")).rollback()
        paid = transaction(producer, client_message(topic, b"paid"))
        paid.commit()
        wait_for(lambda: len(got) == 2)
    assert set(got) == {b"normal", b"paid"}
    first = got[b"normal"]
    assert (first.message_id, first.tag, first.keys, first.message_group) == (
        normal.message_id, "TagA", {"KEY17"}, "customer-4",
    )  # fmt: skip


def test_a_fifo_group_handles_a_message_group_one_after_the_other(kafka: Namespace, tmp_path: Path) -> None:
    """Though the push consumer has many threads."""
    write(tmp_path / "w", "orders", [row(n, queue=n % 2, sharding_key=b"%d" % (n % 4)) for n in range(40)])
    begun, done = list[int](), list[int]()

    def consume(given: Any) -> bool:
        number = int(given.body)
        begun.append(number)
        time.sleep(0.05 if number < 20 else 0.0)
        done.append(number)
        return True

    with (
        gateway(kafka.servers, kafka.prefix, f"--set=warehouse={tmp_path / 'w'}", "--fifo=poi*") as running,
        push_consumer(running.port, "orders", consume),
    ):
        wait_for(lambda: len(done) == 40)
    for group in range(4):
        mine = [each for each in done if each % 4 == group]
        assert mine == [each for each in begun if each % 4 == group] == sorted(mine)


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
