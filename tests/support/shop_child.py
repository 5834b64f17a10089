"""A service that places orders in a database, or one that books them in another; both may be killed at any time.

The argument is JSON: the `role`; `url` of its database; `servers` and `prefix` of Kafka, or `warehouse`. Of the role
`rows`, whose orders are rows of PostgreSQL on a plain connection, also `dies`, the step of its second order at which it
kills itself. Without `dies` its orders have no end, and it takes its time at each step.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

import commitlake
from commitlake import CommitLakeError, DatabaseListener, Message, TransactionMQProducer

GROUP = "shop"
STEPS = ("before the half message", "before the commit", "before the op", "never")


class SoldOut(Exception):
    """The service's own reason to roll back."""


def pause() -> None:
    """Give a kill the time to come here."""
    time.sleep(random.uniform(0, 0.03))


def insert(connection: Connection, table: str, name: str) -> None:
    """Insert a row; the tables have no unique key, so a row that comes twice is seen."""
    connection.execute(text(f"INSERT INTO {table} VALUES (:name)"), {"name": name})


def place_orders(given: dict[str, Any], engine: Engine) -> None:
    """Place orders, of which every third is sold out, until killed."""
    listener = DatabaseListener(engine)
    with (
        TransactionMQProducer("shop", listener, bootstrap_servers=given["servers"], topic_prefix=given["prefix"]) as it,
        engine.connect() as connection,
    ):
        while True:
            with suppress(SoldOut, CommitLakeError, DBAPIError):  # SQLite has one writer, for which others wait
                place_order(it, connection)


def place_order(producer: TransactionMQProducer, connection: Connection) -> None:
    name = uuid.uuid4().hex
    with producer.begin_transaction(database=connection) as transaction:
        insert(connection, "orders", name)
        pause()
        transaction.send(Message("orders", name, keys=name))
        pause()
        if random.random() < 0.3:
            raise SoldOut


def book_points(given: dict[str, Any], engine: Engine) -> None:
    """Book each order, until killed."""

    def book(message: Any) -> None:
        with engine.connect() as connection, message.once(connection) as is_new:
            if is_new:
                insert(connection, "points", message.keys)
                pause()
        pause()

    with commitlake.consume({"warehouse": given["warehouse"]}, "orders", group="points", lease="2s") as messages:
        messages.run(book, threads=2, pauses=["100ms"], max_attempts=1_000)


class Orders:
    """Orders on one connection after the other."""

    def __init__(self, producer: TransactionMQProducer, url: str) -> None:
        self._producer, self._url = producer, url
        self.dies = ""
        producer.register_end_transaction_hook(lambda _: self._reach("before the op"))

    def last(self, dies: str) -> None:
        """An order, and another one that does not come to its end."""
        with psycopg.connect(self._url) as database:
            self.dies = "never"
            self._order(database, "paid")
            self.dies = dies
            self._order(database, "paid")

    def endless(self) -> None:
        """Orders until the connection is lost."""
        with suppress(psycopg.Error), psycopg.connect(self._url) as database:
            while True:
                with suppress(SoldOut, CommitLakeError):
                    self._order(database, random.choice(("paid", "paid", "sold out")))

    def _order(self, database: Any, outcome: str) -> None:
        name = f"{random.getrandbits(64):x}"
        with self._producer.begin_transaction(database=database) as transaction:
            database.execute("INSERT INTO orders VALUES (%s)", (name,))
            self._reach("before the half message")
            transaction.send(Message("orders", name, keys=name))
            self._reach("before the commit")
            if outcome == "sold out":
                raise SoldOut

    def _reach(self, step: str) -> None:
        if not self.dies:
            time.sleep(random.uniform(0, 0.05))
        elif step == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)


def place_rows(given: dict[str, Any]) -> None:
    """Goes on after the server has crashed."""
    with TransactionMQProducer(
        GROUP, bootstrap_servers=given["servers"], topic_prefix=given["prefix"], send_msg_timeout=10
    ) as producer:
        orders = Orders(producer, given["url"])
        if given["dies"]:
            orders.last(given["dies"])
        while not given["dies"]:
            orders.endless()


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    if told["role"] == "rows":
        place_rows(told)
    else:
        {"orders": place_orders, "points": book_points}[told["role"]](told, create_engine(told["url"]))
