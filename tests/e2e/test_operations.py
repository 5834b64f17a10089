"""The commands `ledger` and `admin`, and delayed messages by their business key, on what a real coordinator wrote."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.namespace import Listener
from tests.support.polling import wait_for, wait_until_equal
from tests.support.tables import rows
from typer.testing import CliRunner

import commitlake
from commitlake import DefaultMQProducer, LocalTransactionState, Message, TransactionMQProducer
from commitlake.errors import ProducerError, TransactionNotFoundError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.recall_handle import decode_handle
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted, found
from commitlake.spark import process
from commitlake.tools.audit import admin, ledger
from commitlake.tools.cli import app

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator

TOPIC, GROUP = "operations", "operators"
COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)


@pytest.fixture(scope="module")
def sent(coordinator: Coordinator) -> Iterator[dict[str, str]]:
    """Transaction ids by what became of them; `discarded` and `resumed` stay unknown to the producer."""
    kafka = coordinator.config.kafka
    where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
    with TransactionMQProducer(GROUP, Listener(check=UNKNOW), **where) as producer:

        def send(answer: LocalTransactionState, **delay: Any) -> str:
            return str(producer.send_message_in_transaction(Message(TOPIC, b"body", **delay), answer).transaction_id)

        ids = {
            "committed": send(COMMIT, check_immunity_seconds=3_600),
            "rolled back": send(ROLLBACK, check_immunity_seconds=3_600),
            "delivered": send(COMMIT, delay_milliseconds=1),
            "waiting": send(COMMIT, delay_seconds=3_600),
            "discarded": send(UNKNOW),
            "resumed": send(UNKNOW),
            "immune": send(UNKNOW, check_immunity_seconds=3_600),
            "forced": send(UNKNOW, check_immunity_seconds=3_600),
        }
        with DefaultMQProducer("plain", **where) as plain:
            plain.send(Message(TOPIC, b"normal"))
            plain.send(Message(TOPIC, b"delayed", delay_milliseconds=1))
            plain.send(Message(TOPIC, b"waiting", delay_seconds=3_600))
        yield ids


@pytest.fixture(scope="module")
def history(coordinator: Coordinator, sent: dict[str, str]) -> Callable[..., list[str]]:
    """Events of a transaction, in time order, once it has come to `until`."""

    def events(name: str) -> list[str]:
        found = ledger.transaction(coordinator.spark, coordinator.config.warehouse, sent[name])
        return [row["event"] for row in found.collect()]

    def told(name: str, until: str) -> list[str]:
        wait_for(lambda: until in events(name))
        return events(name)

    return told


def command(coordinator: Coordinator, name: str, *arguments: str) -> int:
    """Run one as in Spark's driver, with the coordinator's configuration."""
    conf = coordinator.config
    values = {
        "warehouse": conf.warehouse,
        "kafka.bootstrap_servers": conf.kafka.bootstrap_servers,
        "kafka.topic_prefix": conf.kafka.topic_prefix,
    }
    line = [name, *[f"--set={key}={value}" for key, value in values.items()], *arguments]
    with pytest.MonkeyPatch.context() as inside:
        inside.setenv(process.MEETING_PLACE, "here")
        inside.setattr(process, "exit_on_signals", lambda _: nullcontext())
        return int(app.app(line, standalone_mode=False) or 0)


@pytest.fixture(scope="module")
def decided(coordinator: Coordinator, sent: dict[str, str], history: Any) -> None:
    """What administrators did: reopened and then committed one, rolled another back while it was pending."""
    history("forced", until="half message")
    first = admin.first_half_message(coordinator.spark, coordinator.config.warehouse, sent["forced"])
    admin.send(coordinator.config.kafka, "ROLLBACK", sent["forced"], first, "customer called")
    history("resumed", until="DISCARDED")
    assert command(coordinator, "admin", "resume", sent["resumed"], "--remark", "database restored") == 0
    assert command(coordinator, "admin", "commit", sent["resumed"], "--remark", "order 17 exists") == 0


def test_the_ledger_shows_a_transaction_from_its_half_message_to_its_end(history: Any) -> None:
    assert history("committed", until="COMMITTED") == ["half message", "COMMIT op", "COMMITTED"]
    assert history("rolled back", until="ROLLED_BACK") == ["half message", "ROLLBACK op", "ROLLED_BACK"]
    assert history("delivered", until="DELIVERED")[-2:] == ["COMMITTED", "DELIVERED"]
    assert [event for event in history("discarded", until="DISCARDED") if event != "UNKNOWN op"] == [
        "half message", "check 1", "check 2", "DISCARDED",
    ]  # fmt: skip


@pytest.mark.usefixtures("decided")
def test_a_forced_end_needs_no_check_and_has_its_remark(
    coordinator: Coordinator, sent: dict[str, str], history: Any
) -> None:
    events = history("resumed", until="COMMITTED")
    assert events.index("DISCARDED") < events.index("RESUME op") < events.index("COMMITTED")
    assert history("forced", until="ROLLED_BACK") == ["half message", "UNKNOWN op", "ROLLBACK op", "ROLLED_BACK"]
    rows = ledger.transaction(coordinator.spark, coordinator.config.warehouse, sent["forced"]).collect()
    assert rows[2]["detail"] == "by an administrator, customer called"
    assert rows[3]["detail"].startswith("reason ADMIN")


def test_an_unknown_transaction_id_is_an_error_and_nothing_is_sent(coordinator: Coordinator) -> None:
    with pytest.raises(TransactionNotFoundError, match="no first half message with the transaction id 'nobody'"):
        admin.first_half_message(coordinator.spark, coordinator.config.warehouse, "nobody")
    assert command(coordinator, "ledger", "nobody") == 1


@pytest.mark.usefixtures("decided")
def test_the_summary_counts_every_kind_once_and_its_counts_agree(
    coordinator: Coordinator, sent: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def row() -> dict[str, Any]:
        found = ledger.summary(coordinator.spark, coordinator.config.warehouse).where(f"topic = '{TOPIC}'")
        return found.collect()[0].asDict()

    expected = {
        "normal": 1, "half": 8, "committed": 4, "rolled_back": 2, "discarded": 1, "pending": 1,
        "delayed": 2, "delivered": 2, "recalled": 0, "duplicates": 0, "waiting": 2, "visible": 5, "holds": True,
    }  # fmt: skip
    wait_for(lambda: row() == {"topic": TOPIC, **expected})
    capsys.readouterr()
    assert command(coordinator, "ledger", "--summary") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert dict(zip(lines[0], next(line for line in lines if line[0] == TOPIC), strict=True)) == {
        "topic": TOPIC, **{name: str(value) for name, value in expected.items()},
    }  # fmt: skip


def test_discarded_transactions_are_resumed_by_hundreds_and_say_who_and_why(
    coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
    producer = TransactionMQProducer("bulk", Listener(check=UNKNOW), **where)
    with producer:
        for number in range(150):
            producer.send_message_in_transaction(
                Message("bulk", b"", keys=f"b{number}", check_immunity_seconds=3_600), UNKNOW
            )
    common = (
        *("--group=bulk", f"--set=warehouse={warehouse}", f"--set=kafka.topic_prefix={kafka.topic_prefix}"),
        *(f"--set=kafka.bootstrap_servers={kafka.bootstrap_servers}", "--as=ada", "--remark=the database is back"),
    )

    def states() -> Counter[str]:
        with opened(warehouse) as tables:
            rows = found(tables, Wanted(group="bulk"), now_ms())
        return Counter(rows["state"].to_pylist())

    wait_for(lambda: states() == {"PENDING": 150})
    assert tx("commit", "--keys=b7", "--dry-run", *common) == 0
    assert "COMMIT of 1 transaction:" in capsys.readouterr().out
    assert states() == {"PENDING": 150}
    assert tx("rollback", "--where", "keys LIKE 'b1%'", "--rate=500", "--yes", *common) == 0
    assert "sent 61 decisions" in capsys.readouterr().out
    wait_for(lambda: states() == {"PENDING": 89, "ROLLED_BACK": 61})
    assert tx("rollback", "--where", "keys LIKE 'b1%'", "--yes", *common) == 3, "what has ended does not fit any more"
    assert tx("commit", "--older-than=1ms", "--yes", *common) == 0
    wait_for(lambda: states() == {"COMMITTED": 89, "ROLLED_BACK": 61})
    remarks = {row["remark"] for row in rows(warehouse, "op") if row["admin"] and row["transaction_id"]}
    assert "the database is back (by ada)" in remarks


def tx(*words: str) -> int:
    """The exit code of a `tx` command."""
    try:
        app.app(["tx", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def ask(lake: Lake, *words: str) -> tuple[int, list[Any], str]:
    sets = [f"--set={key}={value}" for key, value in lake.settings.items() if key.startswith(("kafka.", "warehouse"))]
    done = CliRunner().invoke(app.app, [*words, *sets])
    lines = done.output.splitlines()
    return done.exit_code, [json.loads(line) for line in lines if line.startswith("{")], done.output


def test_a_message_in_place_of_a_delayed_one_is_shown_once(spark: SparkSession, lake: Lake) -> None:
    dedup = {"topics.dedup": {"reminders": {"window": "1d"}}}
    with (
        commitlake.start(spark, {**lake.settings, **dedup}),
        DefaultMQProducer(
            "g",
            bootstrap_servers=str(lake.settings["kafka.bootstrap_servers"]),
            topic_prefix=lake.config.kafka.topic_prefix,
        ) as producer,
    ):
        first = producer.send(Message("reminders", "in an hour", keys="A", delay_seconds=3_600))
        with pytest.raises(ProducerError, match="what is to be replaced is in reminders; nothing was sent"):
            producer.reschedule(str(first.recall_handle), Message("others", "", keys="A"))
        producer.reschedule(str(first.recall_handle), Message("reminders", "soon", keys="A", delay_milliseconds=1))
        late = producer.send(Message("reminders", "at once", keys="B", delay_milliseconds=1))
        wait_for(lambda: bodies(lake) == [b"at once", b"soon"])
        producer.reschedule(str(late.recall_handle), Message("reminders", "too late", keys="B", delay_milliseconds=1))
        wait_for(lambda: len(lake.rows("deliveries")) == 4 and lake.rows("rejected"))
    states = Counter(row["state"] for row in lake.rows("deliveries"))
    assert states == {"DELIVERED": 2, "RECALLED": 1, "DUPLICATE": 1}
    assert [row["reason"] for row in lake.rows("rejected")] == ["RECALL_TOO_LATE"]
    assert bodies(lake) == [b"at once", b"soon"]


def bodies(lake: Lake) -> list[bytes]:
    return sorted(row["body"] for row in lake.topic("reminders"))


def test_a_key_finds_and_recalls_what_is_waiting(spark: SparkSession, lake: Lake) -> None:
    due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
    with commitlake.start(spark, lake.settings):
        place = lake.message("one", topic="reminders", keys="order-17 mail", delays=due)
        lake.message("two", topic="reminders", keys="order-17", delays=due)
        lake.message("three", topic="reminders", keys="order-18", delays=due)
        lake.message("four", topic="others", keys="order-17", delays=due)
        lake.message("soon", topic="reminders", keys="order-17", delays={"TIMER_DELAY_MS": "1"})
        wait_for(lambda: len(lake.rows("deliveries")) == 1)
        code, rows, _ = ask(lake, "delayed", "--topic=reminders", "--keys=order-17", "--json")
        assert (code, sorted(row["message_id"] for row in rows)) == (0, ["one", "two"])
        found = {row["message_id"]: row for row in commitlake.delayed(lake.settings)}
        assert sorted(found) == ["four", "one", "three", "two"]
        handle = decode_handle(found["one"]["recall_handle"])
        assert (handle.msg_id, handle.topic, handle.message) == ("one", "reminders", place)

        assert ask(lake, "recall", "reminders", "--keys=order-19")[0] == 3
        code, _, told = ask(lake, "recall", "reminders", "--keys=order-17", "--dry-run")
        assert (code, "are sent" in told) == (0, False)
        code, _, told = ask(lake, "recall", "reminders", "--keys=order-17", "--yes")
        assert (code, told.splitlines()[-1].split(";")[0]) == (0, "sent 2 recalls")
        wait_until_equal(
            lambda: sorted((row["message_id"], row["state"]) for row in lake.rows("deliveries")),
            [("one", "RECALLED"), ("soon", "DELIVERED"), ("two", "RECALLED")],
        )
        wait_until_equal(
            lambda: sorted(row["message_id"] for row in commitlake.delayed(lake.settings)), ["four", "three"]
        )
    assert lake.rows("rejected") == []
