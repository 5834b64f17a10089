"""The how-to's task of Celery, in a real worker: orders of tries that fail are placed and shown once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from celery import Celery
from pyspark.sql import SparkSession
from sqlalchemy import create_engine
from tests.support import databases
from tests.support.killing import ENVIRONMENT, ROOT, kill
from tests.support.lake import Lake
from tests.support.polling import wait_for

import commitlake
from commitlake import DatabaseListener
from commitlake.kafka.embedded import EmbeddedBroker

PAGE = (ROOT / "docs" / "how-to" / "databases.md").read_text()
SNIPPET = PAGE.split("### Celery")[1].split("```python\n")[1].split("```")[0]
SOON = {"transaction.timeout": "2s", "transaction.check_interval": "2s", "transaction.check_max": 100}
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
