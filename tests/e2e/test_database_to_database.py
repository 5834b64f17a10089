"""From a database to another, and by a task of Celery: each order is shown once, and booked once, under SIGKILLs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, make_url, text
from tests.support import databases
from tests.support.killing import ENVIRONMENT, ROOT, kill
from tests.support.lake import Lake
from tests.support.polling import wait_for

import commitlake
from commitlake import DatabaseListener
from commitlake.kafka.embedded import EmbeddedBroker

SOON = {"transaction.timeout": "2s", "transaction.check_interval": "2s", "transaction.check_max": 100}


@contextmanager
def two_databases(kind: str, place: Path) -> Iterator[list[str]]:
    """The URLs of two databases; of a server, it is one that both services share."""
    if kind == "sqlite":
        yield [f"sqlite:///{place}/orders.db", f"sqlite:///{place}/points.db"]
    elif kind == "mariadb":
        with databases.mariadb() as url:
            yield [url, url]
    else:
        with databases.cluster() as server:
            yield [server.url().replace("://", "+psycopg://")] * 2


def rule(url: str) -> dict[str, str]:
    """The coordinator's rule for a database."""
    given = make_url(url)
    address = given._replace(username=None, password=None).render_as_string()
    login = {"user": str(given.username)} if given.username else {}
    password = {"password": "env:SHOP_PASSWORD"} if given.password else {}
    return {"database": address, "every": "1s", **login, **password}


def rows(url: str, table: str) -> Counter[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = Counter(connection.execute(text(f"SELECT name FROM {table}")).scalars())
    engine.dispose()
    return found


class Service:
    """A process of a role, started again after each kill."""

    def __init__(self, **told: Any) -> None:
        self._told = json.dumps(told)
        self.process = self._started()

    def kill(self) -> None:
        kill(self.process)
        self.process = self._started()

    def _started(self) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "tests.support.shop_child", self._told]
        return subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, start_new_session=True)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.soak)])
def test_orders_are_shown_and_booked_once_when_both_services_are_killed_at_random(
    spark: SparkSession,
    broker: EmbeddedBroker,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    kills: int,
) -> None:
    chance = random.Random(seed := time.time_ns())
    print(f"seed {seed}")
    monkeypatch.setenv("SHOP_PASSWORD", databases.PASSWORD)
    with (
        two_databases(kind, tmp_path) as (shop, bank),
        Lake(broker.bootstrap_servers, prefix, tmp_path, **SOON, checks={"shop": rule(shop)}) as lake,
    ):
        for url, table in ((shop, "orders"), (bank, "points")):
            engine = create_engine(url)
            with engine.begin() as connection:
                connection.execute(text(f"CREATE TABLE {table} (name VARCHAR(40))"))
            DatabaseListener(engine, create=True)
            engine.dispose()
        kafka = {"servers": broker.bootstrap_servers, "prefix": prefix}
        with commitlake.start(spark, lake.settings):
            running = [
                Service(role="orders", url=shop, **kafka),
                Service(role="points", url=bank, warehouse=str(lake.warehouse)),
            ]
            try:
                wait_for(lambda: rows(bank, "points"))
                for _ in range(kills):
                    time.sleep(chance.uniform(0.5, 2.5))
                    chance.choice(running).kill()
                kill(running[0].process)  # from now on the rule is alone with the checks
                wait_for(lambda: len(lake.rows("transactions")) == len(lake.rows("half")), 120)
                placed = rows(shop, "orders")
                wait_for(lambda: len(rows(bank, "points")) == len(placed), 120)
            finally:
                for each in running:
                    kill(each.process)
        shown = Counter(row["keys"] for row in lake.rows("topics/orders"))
        assert placed == shown == rows(bank, "points")
        assert set(placed.values()) == {1}
        ends = Counter((row["state"], row["reason"]) for row in lake.rows("transactions"))
        print(f"{kills} kills of {kind}: {ends}")


PAGE = (ROOT / "docs" / "how-to" / "databases.md").read_text()
SNIPPET = PAGE.split("### Celery")[1].split("```python\n")[1].split("```")[0]

TABLES = (
    "CREATE TABLE stock (item TEXT PRIMARY KEY)",
    "CREATE TABLE orders (id TEXT PRIMARY KEY, item TEXT REFERENCES stock DEFERRABLE INITIALLY DEFERRED)",
)


def changed(**values: str) -> str:
    """The snippet with the addresses of the test, and a time limit that it can wait for."""
    text = SNIPPET
    for before, after in values.items():
        given = {"kafka": '"127.0.0.1:19092"', "database": "postgresql+psycopg://shop@db/shop",
                 "broker": "redis://queue", "limit": "soft_time_limit=30"}[before]  # fmt: skip
        assert given in text
        text = text.replace(given, after)
    return text


class Worker:
    """A worker of Celery with one process for its tasks, and the queue, which is a directory."""

    def __init__(self, place: Path, module: str) -> None:
        (queue := place / "queue").mkdir()
        folders = {
            "data_folder_in": str(queue),
            "data_folder_out": str(queue),
            "control_folder": str(place / "control"),
        }
        self._place, self._log = place, place / "worker.log"
        self._queue = Celery("shop", broker="filesystem://")
        self._queue.conf.broker_transport_options = folders
        (place / "shop.py").write_text(f"{module}\napp.conf.broker_transport_options = {folders!r}\n")

    @contextmanager
    def running(self) -> Iterator[None]:
        words = ["-m", "celery", "-A", "shop", "worker", "--pool", "prefork", "--concurrency", "1", "-l", "INFO"]
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *words, "--without-gossip", "--without-mingle"],
                cwd=self._place, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield
        finally:
            kill(process)

    def place(self, item: str) -> None:
        self._queue.send_task("shop.place_order", [item])

    def wait_for(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self._log.read_text().count(text) >= times, why=self._log.read_text)


def items(server: databases.Server) -> Counter[str]:
    with psycopg.connect(server.url()) as database:
        return Counter(item for (item,) in database.execute("SELECT item FROM orders"))


def ends(lake: Lake) -> Counter[str]:
    return Counter(row["state"] for row in lake.rows("transactions"))


def test_tasks_that_fail_once_or_take_too_long_place_and_show_their_orders_once(
    spark: SparkSession, broker: EmbeddedBroker, prefix: str, tmp_path: Path
) -> None:
    with (
        databases.cluster() as server,
        Lake(broker.bootstrap_servers, prefix, tmp_path, **SOON) as lake,
        commitlake.start(spark, lake.settings),
    ):
        url = server.url().replace("://", "+psycopg://")
        DatabaseListener(create_engine(url), create=True)
        kafka = f'"{broker.bootstrap_servers}", topic_prefix="{prefix}"'
        module = changed(kafka=kafka, database=url, broker="filesystem://", limit="soft_time_limit=3")
        worker = Worker(tmp_path, module)
        with worker.running(), psycopg.connect(server.url(), autocommit=True) as database:
            for each in TABLES:
                database.execute(each)
            worker.place("a book")  # its commit fails while it is not in stock
            worker.wait_for("Retry in")
            database.execute("INSERT INTO stock VALUES ('a book'), ('a pen')")
            wait_for(lambda: items(server) == {"a book": 1})
            with database.transaction():
                database.execute("SELECT * FROM stock WHERE item = 'a pen' FOR UPDATE")  # which a commit waits for
                worker.place("a pen")
                worker.wait_for("SoftTimeLimitExceeded")
            worker.wait_for("succeeded", 2)
            placed = items(server)
            wait_for(lambda: ends(lake)["COMMITTED"] == 2)
            wait_for(lambda: len(lake.rows("transactions")) == len(lake.rows("half")))
    shown = Counter(bytes(row["body"]).decode() for row in lake.rows("topics/orders"))
    assert shown == placed == {"a book": 1, "a pen": 1}
    assert (ends(lake)["COMMITTED"], ends(lake)["ROLLED_BACK"] > 0) == (2, True)
