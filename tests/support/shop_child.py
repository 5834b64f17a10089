"""A service that places orders in a database, or one that books them in another; both may be killed at any time.

The argument is JSON: the `role`; `url` of its database; `servers` and `prefix` of Kafka, or `warehouse`.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

import commitlake
from commitlake import CommitLakeError, DatabaseListener, Message, TransactionMQProducer


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


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    {"orders": place_orders, "points": book_points}[told["role"]](told, create_engine(told["url"]))
