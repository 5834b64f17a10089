"""A coordinator that asks PostgreSQL what became of the transactions of processes and servers that were killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support import postgres
from tests.support.killing import ENVIRONMENT, ROOT, kill
from tests.support.lake import Lake
from tests.support.polling import wait_for

import commitlake
from commitlake import Message, TransactionMQProducer
from commitlake.kafka.embedded import EmbeddedBroker

psycopg = pytest.importorskip("psycopg")
child = pytest.importorskip("tests.support.postgres_child")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.cluster() as found:
        postgres.execute(found.address, "CREATE TABLE orders (id TEXT PRIMARY KEY)")
        yield found


@pytest.fixture
def asking(
    spark: SparkSession,
    broker: EmbeddedBroker,
    prefix: str,
    tmp_path: Path,
    server: postgres.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    """A lake whose coordinator asks the server each second."""
    monkeypatch.setenv("SHOP_PASSWORD", postgres.PASSWORD)
    postgres.execute(server.address, "TRUNCATE orders")
    rule = {
        "database": f"postgresql://{server.address}/postgres", "user": "shop", "password": "env:SHOP_PASSWORD",
        "every": "1s",
    }  # fmt: skip
    changes = {"transaction.timeout": "1s", "transaction.check_interval": "1s", "checks": {child.GROUP: rule}}
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **changes) as lake, commitlake.start(spark, lake.settings):
        yield lake


def started(lake: Lake, server: postgres.Server, dies: str = "") -> subprocess.Popen[Any]:
    kafka = lake.config.kafka
    given = {"servers": kafka.bootstrap_servers, "prefix": kafka.topic_prefix, "url": server.url(), "dies": dies}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.postgres_child", json.dumps(given)],
        env=ENVIRONMENT,
        cwd=ROOT,
        start_new_session=True,
    )


def rows(server: postgres.Server) -> list[str]:
    with psycopg.connect(server.url()) as database:
        return [row[0] for row in database.execute("SELECT id FROM orders")]


def wait_for_ends(lake: Lake, count: int) -> None:
    wait_for(lambda: len(lake.rows("half")) >= count)
    wait_for(lambda: len(lake.rows("transactions")) == len(lake.rows("half")), 120)
    last = max(row["batch_id"] for row in lake.rows("transactions"))
    wait_for(lambda: max((row["batch_id"] for row in lake.rows("batches")), default=-1) >= last)


def assert_told_as_stored(lake: Lake, server: postgres.Server) -> None:
    """Each row has its message, once, and no message is without its row."""
    assert Counter(row["keys"] for row in lake.rows("topics/orders")) == dict.fromkeys(rows(server), 1)
    assert lake.rows("rejected") == []


def test_processes_that_are_killed_at_each_step_end_as_their_rows_have(asking: Lake, server: postgres.Server) -> None:
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
    asking: Lake, server: postgres.Server
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
    asking: Lake, server: postgres.Server
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
