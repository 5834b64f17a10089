"""CommitLake on a broker that encrypts, asks for passwords and forbids what docs/how-to/secure.md does not list."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession
from tests.support import tables
from tests.support.brokers import free_ports
from tests.support.namespace import Listener
from tests.support.polling import patience, wait_for, wait_until_equal
from tests.support.running import Coordinator as Process
from tests.support.running import coordinator as coordinator_process
from tests.support.secured import OUTSIDER, PASSWORDS, Secured, jaas, make_server_certificate, secured_broker

from commitlake import DefaultMQProducer, LocalTransactionState, Message, TransactionMQProducer
from commitlake import config as configuration
from commitlake.clients.producer.kafka_python import KafkaPythonEngine
from commitlake.config import KafkaConfig
from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import CommitLakeError, KafkaError, ProducerError
from commitlake.protocol.encoding import Position
from commitlake.tools.audit import admin

PREFIX, GROUP = "secured.", "shop"
COMMIT, UNKNOW = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW
TIMINGS = {"timeout": "1s", "check_interval": "10s", "check_max": 2, "op_park_time": "3s"}
NOWHERE = Position(0, 0)
CLUSTER = Path(__file__).parents[2] / "conf" / "hdfs.yaml"
REFUSED_WITHIN_S = 60  # kafka-python by itself tries for ever


def shop() -> Listener:
    """To checks it knows only what has keys."""
    return Listener(check=lambda message: COMMIT if message.keys else UNKNOW)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        for prefix in (PREFIX, "process."):
            running.permit(prefix, GROUP)
        running.grant("reader", "topics", f"{PREFIX}settings", "Read")
        running.grant("reader", "topics", f"{PREFIX}*", "Describe")
        yield running


def settings(secured: Secured, place: Path, user: str = "coordinator", **login: str) -> dict[str, object]:
    return {
        "warehouse": str(place / "warehouse"),
        "checkpoints": str(place / "checkpoints"),
        "kafka": {
            "bootstrap_servers": secured.bootstrap_servers,
            "topic_prefix": PREFIX,
            "queues": 2,
            "options": secured.options(user, **login),
        },
        "trigger_interval": "500ms",
        "transaction": TIMINGS,
    }


@pytest.fixture(scope="module")
def secured_coordinator(
    spark: SparkSession, secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Coordinator]:
    import commitlake

    own = spark.newSession()  # queries have names in their session, and the shared coordinator runs in this one
    with commitlake.start(own, settings(secured, tmp_path_factory.mktemp("lake"))) as running:
        yield running


def kafka(secured: Secured, user: str, **login: str) -> KafkaConfig:
    return configuration.from_mapping(settings(secured, Path("/nowhere"), user, **login)).kafka


def producing(secured: Secured, user: str = "producer", prefix: str = PREFIX, **login: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": secured.bootstrap_servers,
        "topic_prefix": prefix,
        "options": secured.options(user, **login),
    }


def bodies(warehouse: str | Path, topic: str) -> list[str]:
    return sorted(row["body"].decode() for row in tables.rows(warehouse, f"topics/{topic}"))


def states(warehouse: str, table: str) -> list[str]:
    return sorted(row["state"] for row in tables.rows(warehouse, table))


def ends(warehouse: str) -> dict[str, str]:
    """The newest state of each transaction."""
    rows = tables.rows(warehouse, "transactions")
    return {row["transaction_id"]: row["state"] for row in sorted(rows, key=lambda row: row["batch_id"])}


@pytest.mark.soak
def test_the_documented_rights_are_enough_for_the_whole_way(
    secured_coordinator: Coordinator, secured: Secured, spark: SparkSession
) -> None:
    warehouse = secured_coordinator.config.warehouse
    operator = kafka(secured, "administrator")

    def by_force(decision: str, transaction_id: str) -> None:
        first = admin.first_half_message(spark, warehouse, transaction_id)
        admin.send(operator, decision, transaction_id, first, "by the operator")

    with TransactionMQProducer(GROUP, shop(), **producing(secured)) as producer:

        def send(body: str, arg: LocalTransactionState, **more: Any) -> str:
            return str(producer.send_message_in_transaction(Message("orders", body, **more), arg).transaction_id)

        send("committed", COMMIT)
        send("checked", UNKNOW, keys="known")
        lost = send("resumed", UNKNOW)
        forced = send("forced", UNKNOW, check_immunity_seconds=3_600)
        with producer.begin_transaction() as transaction:
            transaction.send(Message("orders", "first"))
            transaction.send(Message("points", "part"))
        producer.send(Message("orders", "normal"))
        producer.send([Message("orders", "member 1"), Message("orders", "member 2")])
        producer.send(Message("orders", "delayed", delay_milliseconds=1))
        handle = producer.send(Message("orders", "recalled", delay_seconds=3_600)).recall_handle
        assert handle is not None
        producer.recall(handle)

        wait_for(lambda: ends(warehouse).get(lost) == "DISCARDED")
        by_force("RESUME", lost)
        by_force("COMMIT", lost)
        by_force("COMMIT", forced)
        visible = ["checked", "committed", "delayed", "first", "forced", "member 1", "member 2", "normal", "resumed"]
        wait_until_equal(lambda: bodies(warehouse, "orders"), visible)
        wait_until_equal(lambda: bodies(warehouse, "points"), ["part"])
        wait_until_equal(lambda: states(warehouse, "deliveries"), ["DELIVERED", "RECALLED"])
    assert tables.rows(warehouse, "rejected") == []


@pytest.mark.usefixtures("secured_coordinator")
def test_a_producer_can_not_write_to_admin(secured: Secured) -> None:
    with pytest.raises(KafkaError, match=rf"denies the user producer access.*{PREFIX}admin.*Kafka ACLs"):
        admin.send(kafka(secured, "producer"), "RESUME", "t", NOWHERE, None)


@pytest.mark.usefixtures("secured_coordinator")
def test_a_send_without_the_right_to_write_fails(secured: Secured) -> None:
    with (
        DefaultMQProducer(GROUP, **producing(secured, "reader")) as producer,
        pytest.raises(ProducerError, match=r"nothing was sent.*the user reader.*Kafka ACLs"),
    ):
        producer.send(Message("orders", "never"))


@pytest.mark.usefixtures("secured_coordinator")
def test_a_refusal_that_comes_before_the_send_returns_says_that_nothing_was_sent(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine let Kafka's answer to the request for a producer id come first."""

    hand_over = KafkaPythonEngine._hand_over

    def slowly(*given: Any) -> Any:
        client, sent = hand_over(*given)
        wait_for(lambda: sent.is_done)
        return client, sent

    monkeypatch.setattr(KafkaPythonEngine, "_hand_over", slowly)
    test_a_send_without_the_right_to_write_fails(secured)


@pytest.mark.usefixtures("secured_coordinator")
def test_missing_rights_on_a_groups_checks_are_logged_once(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "can't read checks" in record.getMessage()]

    with (
        caplog.at_level(logging.WARNING, "commitlake"),
        TransactionMQProducer("other-group", shop(), **producing(secured)),
    ):
        wait_for(warnings)
        time.sleep(2)  # other errors come again after a second
    (warning,) = warnings()
    assert re.search(r"the user producer access.*check\.other-group.*Kafka ACLs", warning)


def start_coordinator(secured: Secured, spark: SparkSession, user: str, **login: str) -> None:
    import commitlake

    (place := secured.place / "refused").mkdir(exist_ok=True)
    commitlake.start(spark, settings(secured, place, user, **login))


def start_producer(secured: Secured, spark: SparkSession, user: str, **login: str) -> None:
    TransactionMQProducer(GROUP, shop(), **producing(secured, user, **login)).start()


def send_decision(secured: Secured, spark: SparkSession, user: str, **login: str) -> None:
    admin.send(kafka(secured, user, **login), "COMMIT", "t", NOWHERE, None)


EVERYBODY = pytest.mark.parametrize(
    "connect", [start_coordinator, start_producer, send_decision], ids=["coordinator", "producer", "administrator"]
)


def refusal(connect: Callable[..., None], *arguments: Any, **login: str) -> str:
    """The text of the error; fails when it comes late."""
    begun = time.monotonic()
    with pytest.raises(CommitLakeError) as caught:
        connect(*arguments, **login)
    assert time.monotonic() - begun < REFUSED_WITHIN_S * patience()
    return str(caught.value)


@pytest.mark.parametrize(
    ("user", "login", "told"),
    [
        (OUTSIDER, {}, [f"denies the user {OUTSIDER} access", "docs/how-to/secure.md"]),
        ("coordinator", {"password": "wr0ng-secret"}, ["refuses this client", "sasl.jaas.config"]),
        ("coordinator", {"ca": "other"}, ["certificate verify failed", "ssl.truststore.location"]),
    ],
    ids=["missing rights", "a wrong password", "a certificate of an untrusted CA"],
)
@EVERYBODY
def test_who_is_refused_is_told_at_once(
    connect: Callable[..., None], secured: Secured, spark: SparkSession, user: str, login: Any, told: list[str]
) -> None:
    error = refusal(connect, secured, spark, user, **login)
    assert [text for text in told if text not in error] == []
    assert "wr0ng-secret" not in error


def test_the_plans_of_running_queries_hold_no_secret(
    secured_coordinator: Coordinator, spark: SparkSession, secured: Secured, capfd: pytest.CaptureFixture[str]
) -> None:
    assert secured_coordinator.epoch > 0
    for query in secured_coordinator.spark.streams.active:
        query.explain(extended=True)
    batch = spark.read.format("kafka").options(**_kafka_options(secured), subscribe=f"{PREFIX}half").load()
    batch.explain(extended=True)
    printed = capfd.readouterr().out
    assert "Physical Plan" in printed
    assert secured.secret("coordinator") not in printed


def _kafka_options(secured: Secured) -> dict[str, str]:
    given = secured.options("coordinator") | {"bootstrap.servers": secured.bootstrap_servers}
    return {f"kafka.{name}": value for name, value in given.items()}


def test_a_wrong_password_ends_the_command_with_one_line(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLAKE_JAAS", jaas("scram.Scram", "coordinator", "wr0ng-secret") + ";")
    options = {**secured.options("coordinator"), "sasl.jaas.config": "env:COMMITLAKE_JAAS"}
    with coordinator_process(tmp_path, **_as_settings(secured, options)) as running:
        assert running.end(120) == 1
        assert "refuses this client" in running.said
        assert len([line for line in running.said.splitlines() if "commitlake.progress" not in line]) == 1
        assert "wr0ng-secret" not in running.said


@pytest.mark.soak
def test_secrets_by_file_or_environment_appear_nowhere(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the terminal at DEBUG, nor in any file, command line or page of Spark's, also while Kafka is away."""
    secrets = [secured.secret("coordinator"), "k3y-in-a-file"]
    given = secured.options("coordinator")
    monkeypatch.setenv("COMMITLAKE_LOG", "DEBUG")
    monkeypatch.setenv("COMMITLAKE_JAAS", given["sasl.jaas.config"])  # the name in conf/hdfs.yaml
    (tmp_path / "key").write_text(secrets[1] + "\n")
    truststore = "ssl.truststore.location"
    options = {truststore: given[truststore], "ssl.key.password": f"file:{tmp_path / 'key'}"}
    lake, port = tmp_path / "lake", free_ports(1)[0]
    (lake / "events").mkdir(parents=True)
    arguments = _spark_arguments(lake, port)
    more = _as_settings(secured, options)
    with coordinator_process(lake, "--conf", str(CLUSTER), spark_args=arguments, **more) as running:
        running.ready()
        _send_and_check(secured, running.warehouse)
        pages = _pages(port)
        assert "== Physical Plan ==" in pages["plans"]
        found = {
            "Spark's pages": _leaks(pages, secrets),
            "command lines": _leaks(_command_lines(), secrets),
            "files while running": _leaks(_files(lake), secrets),
        }
        secured.broker.stop()
        try:
            wait_for(lambda: "while Kafka is away" in running.said, 300, lambda: running.said)
        finally:
            secured.broker.start()
        running.process.terminate()
        running.end()
        found |= {"output": _leaks({"all": running.said}, secrets), "files": _leaks(_files(lake), secrets)}
    assert found == {where: [] for where in found}
    assert _leaks(_files(lake / "events"), ["SparkListenerApplicationStart"])


def _as_settings(secured: Secured, options: dict[str, str]) -> dict[str, str]:
    given = {f"kafka.options.{name}": value for name, value in options.items()}
    timings = {"trigger_interval": "500ms"} | {f"transaction.{name}": str(value) for name, value in TIMINGS.items()}
    where = {"kafka.bootstrap_servers": secured.bootstrap_servers, "kafka.topic_prefix": "process."}
    return {**given, **timings, **where, "kafka.queues": "2"}


def _spark_arguments(place: Path, port: int) -> str:
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.sql.ui.explainMode": "extended",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # so that its text can be searched
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.local.dir": str(place / "local"),
    }
    return " ".join(f"--conf {name}={value}" for name, value in conf.items())


def _send_and_check(secured: Secured, warehouse: Path) -> None:
    """One transaction that needs a check, so that all of Kafka's clients, Spark's and Python's, have worked."""
    with TransactionMQProducer(GROUP, shop(), **producing(secured, prefix="process.")) as producer:
        producer.send_message_in_transaction(Message("orders", "checked", keys="known"), UNKNOW)
        wait_until_equal(lambda: bodies(warehouse, "orders"), ["checked"])


def _pages(port: int) -> dict[str, str]:
    """What Spark's REST interface and its pages show."""

    def get(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    application = json.loads(get("/api/v1/applications"))[0]["id"]
    rest = f"/api/v1/applications/{application}"
    paths = [f"{rest}/{name}" for name in ("environment", "jobs", "stages", "sql?details=true&planDescription=true")]
    plans = get(f"{rest}/sql?details=true&planDescription=true&length=10000")
    paths += [f"/SQL/execution/?id={plan['id']}" for plan in json.loads(plans)[-40:]]
    return {"plans": plans} | {path: get(path) for path in [*paths, "/environment/", "/StreamingQuery/"]}


def _command_lines() -> dict[str, str]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[str(path)] = path.read_text(errors="replace")
        except OSError:
            continue  # it has ended
    return found


def _files(place: Path) -> dict[str, str]:
    found = {}
    for path in place.rglob("*"):
        try:
            found[str(path)] = path.read_bytes().decode("latin-1") if path.is_file() else ""
        except OSError:
            continue  # Spark deletes what it no longer needs
    return found


def _leaks(texts: dict[str, str], secrets: list[str]) -> list[str]:
    assert texts
    return [name for name, text in texts.items() if any(secret in text for secret in secrets)]


NEW = "an0ther-secret"


def shown(running: Process, producer: DefaultMQProducer, body: str) -> None:
    """Sends a message, and waits until it is visible."""
    producer.send(Message("news", body), timeout="2m")
    running.until(lambda: body in bodies(running.warehouse, "news"), 300)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_password_and_a_ca_are_changed_with_one_restart_of_the_coordinator(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(jaas("scram.Scram", "coordinator", PASSWORDS["coordinator"]) + ";")
    with secured_broker(tmp_path) as secured:
        secured.permit("process.", GROUP)
        options = {**secured.options("coordinator"), "sasl.jaas.config": f"file:{password}"}
        given = _as_settings(secured, options)
        with coordinator_process(tmp_path, **given) as running:
            running.ready()
            producer = DefaultMQProducer(GROUP, **producing(secured, prefix="process."))
            producer.start()
            shown(running, producer, "before")
            trusted = [secured.place / f"{name}.pem" for name in ("ca", "other")]
            trusted[0].write_text("".join(file.read_text() for file in trusted))
            running.stop()
        secured.change_password("coordinator", NEW)
        password.write_text(jaas("scram.Scram", "coordinator", NEW) + ";")
        with coordinator_process(tmp_path, **given) as running:
            running.ready()
            shown(running, producer, "new password")
            make_server_certificate(secured.place, "other")
            secured.broker.restart()
            shown(running, producer, "new certificate")
            trusted[0].write_text(trusted[1].read_text())
            shown(running, producer, "new CA alone")
            producer.shutdown()
