"""How `delta_transaction` ends when its block raises; Kafka is in memory, and deltalake writes in Spark's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

import commitlake
from commitlake import ConfigError, Message, RefusedSend
from commitlake.clients.delta import delta_transaction as module
from commitlake.errors import WarehouseError
from commitlake.testing import InMemoryCoordinator

ROWS = pa.table({"id": [1]})
CONF = {"kafka.bootstrap_servers": "kafka:9092"}
NO_SPARK: Any = None
NO_FRAME: Any = None


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> InMemoryCoordinator:
    made = InMemoryCoordinator()
    monkeypatch.setattr(module, "producer_of", lambda _, group: made.producer(group, None))
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
        pytest.raises(ConfigError, match=r"bootstrap_servers: 'embedded' is not allowed; give the address") as caught,
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
        pytest.raises(RefusedSend, match=error),
        commitlake.delta_transaction(NO_SPARK, CONF, "nightly") as tx,
    ):
        tx.send(given)
        tx.delta_options(*places)
    assert (lake.pending, lake.messages("orders"), lake.rejected) == ([], [], [])
