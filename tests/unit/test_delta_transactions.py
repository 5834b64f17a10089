"""How `delta_transaction` ends when its block raises, and rows of a sink as messages.

Kafka is in memory, and deltalake writes in Spark's place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

import commitlake
from commitlake import ConfigError, Message
from commitlake.clients.delta.sink import message_of, sink
from commitlake.errors import ProducerError, RecordError, RefusedSendError, WarehouseError
from commitlake.testing import InMemoryCoordinator

ROWS = pa.table({"id": [1]})
CONF = {"kafka.bootstrap_servers": "kafka:9092"}
NO_SPARK: Any = None
NO_FRAME: Any = None


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> InMemoryCoordinator:
    made = InMemoryCoordinator()
    home = "commitlake.clients.producer.transactional.TransactionMQProducer.from_conf"
    monkeypatch.setattr(home, lambda _, group: made.producer(group, None))
    return made


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    made = [str(tmp_path / name) for name in ("orders", "lines")]
    for place in made:
        write_deltalake(place, ROWS)
    return made


@pytest.mark.parametrize(
    ("written", "end"), [(0, "ROLLED_BACK"), (1, "ROLLED_BACK"), (2, "COMMITTED")], ids=["none", "one", "all"]
)
def test_an_error_rolls_back_unless_all_tables_have_their_rows(
    lake: InMemoryCoordinator, places: list[str], written: int, end: str
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        commitlake.delta_transaction(NO_SPARK, CONF, "nightly") as tx,
    ):
        tx.send(Message("orders-ready", "now"))
        options = tx.delta_options(*places)
        mark = Transaction(options["txnAppId"], int(options["txnVersion"]))
        for place in places[:written]:
            write_deltalake(place, ROWS, mode="append", commit_properties=CommitProperties(app_transactions=[mark]))
        raise ZeroDivisionError
    outcome = lake.outcome(tx.transaction_id)
    assert outcome is not None
    assert outcome.state == end
    assert len(lake.messages("orders-ready")) == (end == "COMMITTED")


@pytest.mark.parametrize(
    ("checks", "warnings"),
    [
        ({}, 0),
        ({"nightly": {"table": "delta-log"}}, 0),
        ({"nighty": {"table": "delta-log"}}, 1),
        ({"nightly": {"database": "postgresql://db/shop"}}, 1),
    ],
    ids=["no rules here", "a rule", "misspelt", "a rule of another kind"],
)
def test_a_group_without_a_rule_is_told_where_rules_are_known(
    lake: InMemoryCoordinator, caplog: pytest.LogCaptureFixture, checks: dict[str, Any], warnings: int
) -> None:
    with (
        pytest.raises(ConfigError, match="it has no message"),
        commitlake.delta_transaction(NO_SPARK, {**CONF, "checks": checks}, "nightly"),
    ):
        pass
    found = [each for each in caplog.messages if "`checks` has no rule nightly: {table: delta-log}" in each]
    assert len(found) == warnings


def test_of_an_embedded_broker_and_a_deadline_only_what_is_wrong_is_named() -> None:
    with (
        pytest.raises(ConfigError, match=r"bootstrap_servers: 'embedded' is not allowed here; give the") as caught,
        commitlake.delta_transaction(NO_SPARK, {}, "nightly"),
    ):
        pass
    assert "1h" not in str(caught.value)


def test_an_error_before_anything_is_sent_leaves_nothing(lake: InMemoryCoordinator) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        commitlake.delta_transaction(NO_SPARK, CONF, "nightly") as tx,
    ):
        tx.send(Message("orders-ready", "now"))
        raise ZeroDivisionError
    assert lake.pending == []
    assert lake.messages("orders-ready") == []


def test_a_sink_whose_marks_are_forgotten_says_so_and_sends_nothing(tmp_path: Path) -> None:
    conf = {"kafka.bootstrap_servers": "127.0.0.1:1", "warehouse": str(tmp_path / "lake")}
    send = commitlake.sink(conf, "orders", name="nightly", group="nightly")
    with pytest.raises(WarehouseError, match=r"whether micro-batch 7 was sent.*after 30 days.*say begins=7"):
        send(NO_FRAME, 7)


def test_options_for_several_tables_come_in_one_call(lake: InMemoryCoordinator, places: list[str]) -> None:
    with (
        pytest.raises(ConfigError, match=r"its half messages are sent, .*call delta_options\(\) last"),
        commitlake.delta_transaction(NO_SPARK, CONF, "nightly") as tx,
    ):
        tx.send(Message("orders-ready", "now"))
        tx.delta_options(places[0])
        tx.delta_options(places[1])
    assert lake.messages("orders-ready") == []


@pytest.mark.parametrize(
    ("given", "error"),
    [(None, "allowed is a Message"), (Message("orders", "x", tags="a||b"), "no filter can select")],
)
def test_what_can_not_land_is_refused_before_a_table_has_its_rows(
    lake: InMemoryCoordinator, places: list[str], given: Any, error: str
) -> None:
    with (
        pytest.raises(ProducerError, match=error),
        commitlake.delta_transaction(NO_SPARK, CONF, "nightly") as tx,
    ):
        tx.send(given)
        tx.delta_options(*places)
    assert (lake.pending, lake.messages("orders"), lake.rejected) == ([], [], [])


def row(**given: Any) -> dict[str, Any]:
    return {"body": "x", "keys": None, "tags": None, "sharding_key": None, **given}


def test_binary_columns_are_the_bytes_themselves() -> None:
    given = row(body=bytearray(b"\xff\x00"), keys=bytearray(b"order-17"), tags=bytearray("Zürich".encode()))
    made = message_of({**given, "sharding_key": bytearray(b"\xfe")}, "orders", {})
    assert (made.body, made.keys, made.tags, made.sharding_key) == (b"\xff\x00", "order-17", "Zürich", b"\xfe")


def test_what_is_null_is_absent_but_for_the_body() -> None:
    made = message_of(row(body=""), "orders", {"p": "v"})
    assert (made.body, made.keys, made.tags, made.sharding_key, made.properties) == ("", None, None, None, {"p": "v"})
    with pytest.raises(RecordError, match="its body is NULL") as refused:
        message_of(row(body=None), "orders", {})
    assert refused.value.reason == "NULL_BODY"


@pytest.mark.parametrize("name", ["keys", "tags"])
def test_bytes_that_are_no_text_are_told(name: str) -> None:
    with pytest.raises(RecordError, match=rf"its {name} are b'\\xff', which is not UTF-8; write .*hex\({name}\)"):
        message_of(row(**{name: bytearray(b"\xff")}), "orders", {})


def test_a_row_that_ends_its_query_does_so_with_an_error_that_is_a_name_of_the_package(tmp_path: Path) -> None:
    conf = {"warehouse": str(tmp_path / "warehouse"), "kafka.bootstrap_servers": "localhost:9092"}
    to = sink(conf, "orders", name="export", group="nightly")
    told = r"^sink export: row 3 .*: its body is NULL; leave such rows out"
    with pytest.raises(RefusedSendError, match=told) as refused:
        to._invalid(3, row(), RecordError("its body is NULL", "NULL_BODY"))  # type: ignore[attr-defined]
    assert refused.value.reason == "NULL_BODY"


def test_a_row_whose_tag_no_filter_can_select_is_invalid_and_takes_no_other_with_it(tmp_path: Path) -> None:
    conf = {"warehouse": str(tmp_path / "warehouse"), "kafka.bootstrap_servers": "localhost:9092"}
    to: Any = sink(conf, "orders", name="export", group="nightly", on_invalid="skip")
    lake, sent, invalid = InMemoryCoordinator(), dict[str, Any](), list[str]()
    with lake.producer("nightly") as producer:
        to._send(producer, enumerate([row(tags="a||b"), row(tags="a")]), sent, invalid)
        for transaction in sent.values():
            transaction.commit()
    assert [message.tags for message in lake.messages("orders")] == ["a"]
    assert len(invalid) == 1
    assert "row 0" in invalid[0]
    assert "no filter can select" in invalid[0]


def test_rows_with_one_sharding_key_go_out_in_their_order_however_many_there_are(tmp_path: Path) -> None:
    conf = {"warehouse": str(tmp_path / "warehouse"), "kafka.bootstrap_servers": "localhost:9092"}
    to: Any = sink(conf, "orders", name="export", group="nightly")
    lake, sent = InMemoryCoordinator(), dict[str, Any]()
    keys = ["a", "b", "c", None]
    with lake.producer("nightly") as producer:
        rows = [row(body=str(number), sharding_key=keys[number % 4]) for number in range(5_000)]
        to._send(producer, enumerate(rows), sent, [])
        assert len(sent) <= 10
        for transaction in sent.values():
            transaction.commit()
    shown = sorted(lake.messages("orders"), key=lambda message: int(message.position.split("-")[2]))
    assert len(shown) == 5_000
    for key in (b"a", b"b", b"c"):
        numbers = [int(message.body) for message in shown if message.sharding_key == key]
        assert numbers == sorted(numbers)
