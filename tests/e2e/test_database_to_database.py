"""From a service's database to another's: each order that was placed is shown once, and booked once, under SIGKILLs."""

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

import pytest
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
