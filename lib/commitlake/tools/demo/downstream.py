"""Two consumers of the orders: one books points, one ships. Each works in a database of its own."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Self

from commitlake import ReceivedMessage, consume
from commitlake.tools.demo.orders import TOPIC

_SCHEMA = "CREATE TABLE work (position TEXT PRIMARY KEY, order_id TEXT, customer TEXT, amount INTEGER)"


class Service:
    """Reads the topic of the orders as a group of its own, in a thread.

    The message's position is kept in the transaction that holds the work, so a message that comes twice is worked on
    once.

    Args:
        group: its group of consumers, and the name of its database.
        fails_first: of so many orders one fails at its first attempt and is retried; 0 for none.
    """

    def __init__(self, conf: Path, warehouse: Path, group: str, place: Path, fails_first: int = 0) -> None:
        self._database, self._fails_first = place / f"{group}.db", fails_first
        self._messages = consume(conf, TOPIC, group=group, poll="500ms")
        self._first_commit = warehouse / "topics" / TOPIC / "_delta_log" / f"{0:020}.json"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"demo-{group}", daemon=True)
        self._failure: Exception | None = None
        self.retried = 0

    def __enter__(self) -> Self:
        with closing(sqlite3.connect(self._database)) as db, db:
            db.execute(_SCHEMA)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._messages.stop()
        self._thread.join(30)

    def worked_on(self) -> list[str]:
        """Return the ids of the orders that it worked on, one for each time.

        Raises:
            Exception: whatever ended its thread.
        """
        if self._failure is not None:
            raise self._failure
        with closing(sqlite3.connect(self._database)) as db:
            return [row[0] for row in db.execute("SELECT order_id FROM work")]

    def _run(self) -> None:
        try:
            while not self._first_commit.exists() and not self._is_over.wait(0.2):
                pass  # a consumer that finds no topic warns: the name may be misspelt
            for message in self._messages:
                if self._fails_first and message.attempt == 1 and message.source_offset % self._fails_first == 0:
                    self.retried += 1
                    message.retry(after="1s", remark="the carrier does not answer")
                else:
                    self._work(message)
                    message.done()
        except Exception as error:
            self._failure = error

    def _work(self, message: ReceivedMessage) -> None:
        order = json.loads(message.body)
        row = (message.position, order["id"], order["customer"], order["amount"])
        with closing(sqlite3.connect(self._database)) as db, db:
            db.execute("INSERT OR IGNORE INTO work VALUES (?, ?, ?, ?)", row)
