"""An application whose orders are rows in PostgreSQL, each with a message: it kills itself, or is killed.

The argument is JSON: `servers`, `prefix`, `url` of the database, and `dies`, the step of its second order at which it
kills itself. Without `dies` its orders have no end, and it takes its time at each step.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import psycopg

from commitlake import CommitLakeError, Message, TransactionMQProducer

GROUP = "shop"
STEPS = ("before the half message", "before the commit", "before the op", "never")


class SoldOut(Exception):
    """The application's own reason to roll back."""


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


def main() -> None:
    """Goes on after the server has crashed."""
    given = json.loads(sys.argv[1])
    with TransactionMQProducer(
        GROUP, bootstrap_servers=given["servers"], topic_prefix=given["prefix"], send_msg_timeout=10
    ) as producer:
        orders = Orders(producer, given["url"])
        if given["dies"]:
            orders.last(given["dies"])
        while not given["dies"]:
            orders.endless()


if __name__ == "__main__":
    main()
