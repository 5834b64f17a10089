"""A coordinator whose rules ask tables or PostgreSQL what became of transactions, also when it or they are killed."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession
from tests.support import databases, running
from tests.support import shop_child as child
from tests.support.killing import ENVIRONMENT, ROOT, kill
from tests.support.lake import Lake
from tests.support.polling import wait_for

import commitlake
from commitlake import Message, TransactionMQProducer
from commitlake.clients.delta import marks
from commitlake.clients.delta.allowed_places import DEADLINE, TABLES
from commitlake.errors import ConfigError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol.database_row import created_by


def rule(place: Path) -> dict[str, str]:
    return {
        "table": f"delta:{place}",
        "match": "keys = id",
        "commit": "state = 'PAID'",
        "rollback": "state = 'CANCELLED' OR (absent AND age > '2s')",
        "every": "1s",
    }


def ends(lake: Lake) -> dict[str, tuple[str, str]]:
    return {row["transaction_id"]: (row["state"], row["reason"]) for row in lake.rows("transactions")}


def test_transactions_of_a_dead_group_end_by_what_its_table_says(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    states = {f"order-{number}": ("PAID", "CANCELLED", "NEW")[number % 3] for number in range(30)}
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": list(states), "state": list(states.values())}))
    for name in [*states, "lost"]:
        lake.half(name, keys=name, group="gone")
    lake.half("order-0-of-others", keys="order-0", group="others")
    settings = {**lake.settings, "transaction.timeout": "1s", "checks": {"gone": rule(tmp_path / "orders")}}
    with commitlake.start(spark, settings):
        wait_for(lambda: len(ends(lake)) == 21, why=lambda: ends(lake))
        wanted: dict[str, tuple[str, str]] = {
            name: ("COMMITTED", "CHECK") if state == "PAID" else ("ROLLED_BACK", "CHECK")
            for name, state in states.items()
            if state != "NEW"
        }
        assert ends(lake) == wanted | {"lost": ("ROLLED_BACK", "CHECK")}
        write_deltalake(str(tmp_path / "orders"), pa.table({"id": ["order-2"], "state": ["PAID"]}), mode="append")
        wait_for(lambda: ends(lake).get("order-2") == ("COMMITTED", "CHECK"))
    remarks = Counter(row["remark"] for row in lake.rows("op"))
    assert set(remarks) == {"by the rule checks.gone of the coordinator"}
    assert lake.rows("rejected") == []
    visible: list[dict[str, Any]] = lake.rows("topics/orders")
    assert sorted(row["transaction_id"] for row in visible) == sorted(
        [name for name, state in states.items() if state == "PAID"] + ["order-2"]
    )


def test_a_rule_that_can_not_be_used_stops_the_start(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    unsafe = {**rule(tmp_path), "rollback": "absent"}
    with pytest.raises(ConfigError, match="it holds without a row at an age of 0ms"):
        commitlake.start(spark, {**lake.settings, "checks": {"gone": unsafe}})


GARBAGE = {
    "a number": "5",
    "a text": '"x"',
    "numbers": "[5]",
    "an object": '{"/lake": 1}',
    "null": "null",
    "no tables": "[]",
    "lists": "[[[]]]",
    "deep": "[" * 100_000,
    "no JSON": "[",
    "half a character": '["\\ud800"]',
    "a NUL": '["/lake\\u0000"]',
    "no table": '["/no/table/is/here"]',
    "another scheme": '["foo://lake"]',
    "a file": '["/etc/passwd"]',
}
DEADLINES = ["soon", "1e400", "-1", "9" * 30, "9" * 10_000, ""]


def with_a_writer_of_tomorrow(place: str) -> str:
    """A table that deltalake reads and can't write."""
    write_deltalake(place, pa.table({"a": [1]}))
    told = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["ofTomorrow"]}}
    (Path(place) / "_delta_log" / f"{1:020}.json").write_text(json.dumps(told))
    return place


def test_what_a_transaction_says_of_its_tables_harms_no_other(
    spark: SparkSession, lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = str(tmp_path / "orders")
    write_deltalake(table, pa.table({"a": [1]}))
    unwritable = with_a_writer_of_tomorrow(str(tmp_path / "tomorrow"))
    for name, places in {**GARBAGE, "unwritable": json.dumps([unwritable])}.items():
        lake.half(name, group="nightly", properties={TABLES: places, DEADLINE: "0"})
    for number, deadline in enumerate(DEADLINES):
        lake.half(f"deadline {number}", group="nightly", properties={TABLES: json.dumps([table]), DEADLINE: deadline})
    late, written, older = f"{marks.PREFIX}late", f"{marks.PREFIX}written", "of an older job"
    for name in (late, written, older):
        lake.half(name, group="nightly", properties={TABLES: json.dumps([table]), DEADLINE: "0"})
    mark = CommitProperties(app_transactions=[Transaction(name, marks.WRITTEN) for name in (written, older)])
    write_deltalake(table, pa.table({"a": [2]}), mode="append", commit_properties=mark)
    rules = {"nightly": {"table": "delta-log", "every": "1s", "places": [str(tmp_path)]}}
    caplog.set_level(logging.WARNING, logger="commitlake")
    with commitlake.start(spark, {**lake.settings, "transaction.timeout": "1s", "checks": rules}):
        wait_for(lambda: len(ends(lake)) >= 3, why=lambda: caplog.messages)
        left = {*GARBAGE, "unwritable", *(f"deadline {number}" for number in range(len(DEADLINES)))}
        wait_for(
            lambda: all(any(f"transaction {name} stays open" in each for each in caplog.messages) for name in left)
        )
    committed, rolled_back = ("COMMITTED", "CHECK"), ("ROLLED_BACK", "CHECK")
    assert ends(lake) == {late: rolled_back, written: committed, older: committed}
    assert max(map(len, caplog.messages)) < 500


def test_a_producer_gets_nothing_written_where_its_rule_names_no_place_or_under_the_ids_of_others(
    spark: SparkSession, lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim, allowed = str(tmp_path / "victim"), str(tmp_path / "mine")
    own = f"{lake.settings['warehouse']}/transactions"
    stream = CommitProperties(app_transactions=[Transaction("somebodys-stream", 0)])
    for table in (victim, allowed):
        write_deltalake(table, pa.table({"a": [1]}), commit_properties=stream)
    (tmp_path / "mine" / "link").symlink_to(victim)
    tried = {
        f"{marks.PREFIX}victim": victim,
        f"{marks.PREFIX}own": own,
        f"{marks.PREFIX}dots": f"{allowed}/../victim",
        f"{marks.PREFIX}link": f"file://{allowed}/link",
        "not-yet-used": allowed,
    }
    for name, table in tried.items():
        lake.half(name, group="nightly", properties={TABLES: json.dumps([table]), DEADLINE: "0"})
    lake.half(f"{marks.PREFIX}mine", group="nightly", properties={TABLES: json.dumps([allowed]), DEADLINE: "0"})
    rules = {"nightly": {"table": "delta-log", "every": "1s", "places": [allowed]}}
    caplog.set_level(logging.WARNING, logger="commitlake")
    with commitlake.start(spark, {**lake.settings, "transaction.timeout": "1s", "checks": rules}):
        wait_for(lambda: ends(lake), why=lambda: caplog.messages)
        wait_for(lambda: all(any(f"{name} stays open" in each for each in caplog.messages) for name in tried))
    assert ends(lake) == {f"{marks.PREFIX}mine": ("ROLLED_BACK", "CHECK")}
    assert DeltaTable(victim).version() == 0
    assert [DeltaTable(allowed).transaction_version(name) for name in ("somebodys-stream", "not-yet-used")] == [0, None]
    assert all(DeltaTable(own).transaction_version(name) is None for name in tried)


def has_more(lake: Lake, answers: int, count: int) -> bool:
    return len(lake.rows("op")) > answers or len(lake.rows("transactions")) == count


@pytest.mark.soak
def test_a_coordinator_that_is_killed_while_rules_answer_ends_each_transaction_once(lake: Lake, tmp_path: Path) -> None:
    count = 600
    names = [f"order-{number}" for number in range(count)]
    states = {name: ("PAID", "CANCELLED")[number % 2] for number, name in enumerate(names)}
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": names[:1], "state": ["PAID"]}))
    for name in names:
        lake.half(name, keys=name, group="gone")
    rule = {
        "table": f"delta:{tmp_path / 'orders'}", "match": "keys = id", "every": "1s",
        "commit": "state = 'PAID'", "rollback": "state = 'CANCELLED'",
    }  # fmt: skip
    given: dict[str, Any] = {
        **{key.replace(".", "__"): value for key, value in lake.settings.items()},
        "transaction__timeout": "1s", "checks": json.dumps({"gone": rule}),
    }  # fmt: skip
    given.pop("warehouse"), given.pop("checkpoints", None)
    place = lake.root
    for kills in range(3):
        with running.coordinator(place, **given) as coordinator:
            coordinator.ready()
            if kills == 0:
                wait_for(lambda: len(lake.rows("checks")) >= count)
                rest = {"id": names[1:], "state": [states[name] for name in names[1:]]}
                write_deltalake(str(tmp_path / "orders"), pa.table(rest), mode="append")
            before = len(lake.rows("op"))
            wait_for(partial(has_more, lake, before, count))
            kill(coordinator.process)
    with running.coordinator(place, **given) as coordinator:
        coordinator.ready()
        wait_for(lambda: len(lake.rows("transactions")) >= count, why=lambda: len(lake.rows("transactions")))
    ends = lake.rows("transactions")
    assert Counter(row["transaction_id"] for row in ends) == dict.fromkeys(names, 1)
    assert {row["reason"] for row in ends} == {"CHECK"}
    wanted = {name: "COMMITTED" if state == "PAID" else "ROLLED_BACK" for name, state in states.items()}
    assert {row["transaction_id"]: row["state"] for row in ends} == wanted
    visible = sorted(row["transaction_id"] for row in lake.rows("topics/orders"))
    assert visible == sorted(name for name, state in states.items() if state == "PAID")


@pytest.fixture(scope="module")
def server() -> Iterator[databases.Server]:
    with databases.cluster() as found:
        databases.execute(found.address, "CREATE TABLE orders (id TEXT PRIMARY KEY)", *created_by().split("; "))
        yield found


@pytest.fixture
def asking(
    spark: SparkSession,
    broker: EmbeddedBroker,
    prefix: str,
    tmp_path: Path,
    server: databases.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    """A lake whose coordinator asks the server each second."""
    monkeypatch.setenv("SHOP_PASSWORD", databases.PASSWORD)
    databases.execute(server.address, "TRUNCATE orders")
    rule = {
        "database": f"postgresql://{server.address}/postgres", "user": "shop", "password": "env:SHOP_PASSWORD",
        "every": "1s",
    }  # fmt: skip
    changes = {"transaction.timeout": "1s", "transaction.check_interval": "1s", "checks": {child.GROUP: rule}}
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **changes) as lake, commitlake.start(spark, lake.settings):
        yield lake


def started(lake: Lake, server: databases.Server, dies: str = "") -> subprocess.Popen[Any]:
    kafka = lake.config.kafka
    where = {"servers": kafka.bootstrap_servers, "prefix": kafka.topic_prefix, "url": server.url()}
    given = {"role": "rows", "dies": dies, **where}
    return subprocess.Popen(
        [sys.executable, "-m", child.__name__, json.dumps(given)],
        env=ENVIRONMENT,
        cwd=ROOT,
        start_new_session=True,
    )


def rows(server: databases.Server) -> list[str]:
    with psycopg.connect(server.url()) as database:
        return [row[0] for row in database.execute("SELECT id FROM orders")]


def wait_for_ends(lake: Lake, count: int) -> None:
    wait_for(lambda: len(lake.rows("half")) >= count)
    wait_for(lambda: len(lake.rows("transactions")) == len(lake.rows("half")), 120)
    last = max(row["batch_id"] for row in lake.rows("transactions"))
    wait_for(lambda: max((row["batch_id"] for row in lake.rows("batches")), default=-1) >= last)


def assert_told_as_stored(lake: Lake, server: databases.Server) -> None:
    """Each row has its message, once, and no message is without its row."""
    assert Counter(row["keys"] for row in lake.rows("topics/orders")) == dict.fromkeys(rows(server), 1)
    assert lake.rows("rejected") == []


def test_processes_that_are_killed_at_each_step_end_as_their_rows_have(asking: Lake, server: databases.Server) -> None:
    for dies in child.STEPS:
        started(asking, server, dies).wait(60)
    wait_for_ends(asking, 7)
    assert len(asking.rows("half")) == 7
    assert_told_as_stored(asking, server)
    last = [row for row in asking.rows("transactions") if row["reason"] == "CHECK"]
    assert sorted(row["state"] for row in last) == ["COMMITTED", "ROLLED_BACK"]
    remarks = {row["remark"] for row in asking.rows("op") if row["from_check"]}
    assert remarks == {f"by the rule checks.{child.GROUP} of the coordinator"}


def test_a_server_that_crashes_at_each_step_answers_when_it_is_there_again(
    asking: Lake, server: databases.Server
) -> None:
    def crash(*_: object) -> None:
        server.stop()
        server.start()

    kafka = asking.config.kafka
    with TransactionMQProducer(
        child.GROUP, bootstrap_servers=kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix
    ) as producer:
        for step in child.STEPS:
            if step == "before the op":
                producer.register_end_transaction_hook(crash)
            with (
                suppress(psycopg.Error),
                psycopg.connect(server.url()) as database,
                producer.begin_transaction(database=database) as transaction,
            ):
                database.execute("INSERT INTO orders VALUES (%s)", (step,))
                if step == "before the half message":
                    crash()
                transaction.send(Message("orders", step, keys=step))
                if step == "before the commit":
                    crash()
    wait_for_ends(asking, 3)
    assert_told_as_stored(asking, server)
    assert sorted(rows(server)) == ["before the op", "never"]


@pytest.mark.soak
def test_a_thousand_transactions_under_random_kills_end_as_their_rows_have(
    asking: Lake, server: databases.Server
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance, kills, crashes = random.Random(seed), 0, 0
    running = [started(asking, server) for _ in range(3)]
    try:
        while len(asking.rows("half")) < 1_000:
            time.sleep(chance.uniform(0.2, 1.5))
            if chance.random() < 0.3:
                server.stop()
                server.start()
                crashes += 1
            else:
                victim = chance.choice(running)
                running.remove(victim)
                kill(victim)
                kills += 1
                running.append(started(asking, server))
    finally:
        for process in running:
            kill(process)
    wait_for_ends(asking, 1_000)
    ends = Counter((row["state"], row["reason"]) for row in asking.rows("transactions"))
    print(f"{kills} kills of a client, {crashes} of the server: {ends}")
    assert_told_as_stored(asking, server)
    assert ends["COMMITTED", "CHECK"] + ends["ROLLED_BACK", "CHECK"] > 0
