"""An order service under load, and one that kills itself: what must have become of its messages.

python -m tests.support.order_load SERVERS PREFIX DATABASE NAME MOMENT
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.support.lake import Lake, newest

from commitlake import (
    DefaultMQProducer,
    FailedSendError,
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionMQProducer,
    UncertainSendError,
)
from commitlake.kafka.topics import end_offsets

TOPIC = "orders"
_PAUSE_S = 0.1
_DECIDED = {"transaction.timeout": "3s", "transaction.check_interval": "3s", "transaction.check_max": 1_000}
SETTINGS = {**_DECIDED, "transaction.op_park_time": "3s", "trigger_interval": "500ms"}
"""The database has the last word: nothing is discarded while Kafka is away."""
Outcome = type[Exception] | None
"""None for a send that was acknowledged."""


class OrderLoad:
    """Orders in transactions, whose local transaction is a row in SQLite, and notices, sent plainly.

    Args:
        lake: where they go.
        place: a directory for the database.
    """

    def __init__(self, lake: Lake, place: Path) -> None:
        self.lake, self.database = lake, place / "orders.db"
        with closing(sqlite3.connect(self.database)) as db:
            db.execute("CREATE TABLE orders (id PRIMARY KEY)")
        kafka = lake.config.kafka
        self._where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
        self.orders: dict[str, Outcome] = {}
        self.notices: dict[str, Outcome] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def steadily(self) -> Iterator[None]:
        """Goes on sending, both kinds beside each other; checks are answered until the end of the block."""
        with (
            TransactionMQProducer("shop", Orders(str(self.database)), **self._where, options=QUICK) as shop,
            DefaultMQProducer("news", **self._where) as news,
        ):
            kinds = [(shop.send_message_in_transaction, "order", self.orders), (news.send, "notice", self.notices)]
            self._threads = [threading.Thread(target=self._serve, args=kind, daemon=True) for kind in kinds]
            for thread in self._threads:
                thread.start()
            try:
                yield
            finally:
                self.stop_sending()

    def stop_sending(self) -> None:
        """Lets the sends under way end, and no other begin."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _serve(self, send: Callable[[Message], object], name: str, outcomes: dict[str, Outcome]) -> None:
        while not self._stopping.wait(_PAUSE_S):
            key = f"{name}-{len(outcomes)}"
            try:
                send(Message(TOPIC, key, keys=key))
                outcomes[key] = None
            except (FailedSendError, UncertainSendError) as error:  # the next one is another order
                outcomes[key] = type(error)

    def acknowledged(self) -> tuple[int, int]:
        """How many orders and notices were."""
        return len(_acknowledged(self.orders)), len(_acknowledged(self.notices))

    def errors(self) -> set[Outcome]:
        """What befell those that were not."""
        return {*self.orders.values(), *self.notices.values()} - {None}

    def goes_on(self, count: int = 5) -> Callable[[], bool]:
        """Whether so many more of both kinds have been acknowledged from now on."""
        before = self.acknowledged()
        return lambda: all(now >= then + count for now, then in zip(self.acknowledged(), before, strict=True))

    def is_shown(self, count: int = 5) -> Callable[[], bool]:
        """Whether consumers see so many more from now on."""
        before = len(self.shown())
        return lambda: len(self.shown()) >= before + count

    def booked(self) -> set[str]:
        """The orders whose local transaction has committed."""
        with closing(sqlite3.connect(self.database)) as db:
            return {key for (key,) in db.execute("SELECT id FROM orders")}

    def missing(self) -> set[str]:
        """The booked orders and acknowledged notices that consumers do not see yet."""
        return (self.booked() | _acknowledged(self.notices)) - set(self.shown())

    def shown(self) -> Counter[str]:
        """What consumers see, by key."""
        return Counter(row["keys"] for row in self.lake.topic(TOPIC))

    def is_over(self) -> bool:
        """Whether all that Kafka holds has come to its end."""
        held = {self.lake.config.kafka.source(topic): sum(ends.values()) for topic, ends in self._ends().items()}
        halves = self.lake.rows("half")
        ended = newest(self.lake.rows("transactions"))
        plain = sum(row["source"] == "messages" for row in self.lake.topic(TOPIC))
        return held == {"half": len(halves), "messages": plain} and len(ended) == len(halves)

    def _ends(self) -> dict[str, dict[int, int]]:
        return end_offsets(self.lake.config, ["half", "messages"])

    def state(self) -> str:
        """What there is, for the message of a test that fails."""
        halves, ended = self.lake.rows("half"), newest(self.lake.rows("transactions"))
        return f"{self._ends()} in Kafka, {len(halves)} in half, {len(ended)} ended, {len(self.shown())} shown"

    def assert_outcome(self) -> None:
        """Each booked order is shown once and no other, each acknowledged notice once, none that was not sent."""
        assert self.lake.rows("rejected") == []
        shown, booked = self.shown(), self.booked()
        assert [key for key, times in shown.items() if times > 1] == []
        assert {key for key in shown if key.startswith("order-")} == booked
        assert _acknowledged(self.orders) == booked
        unsent = {key for key, outcome in self.notices.items() if outcome and issubclass(outcome, FailedSendError)}
        assert (_acknowledged(self.notices) - set(shown), unsent & set(shown)) == (set(), set())


def _acknowledged(outcomes: dict[str, Outcome]) -> set[str]:
    return {key for key, outcome in outcomes.copy().items() if outcome is None}


COUNT = 10
QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
"""A killed instance's share of the checks goes to the others after 6 s instead of Kafka's 45."""


class Orders(TransactionListener):
    """The local transaction is a row in SQLite; a check looks the row up."""

    def __init__(self, database: str, dies_at: str = "", moment: str = "") -> None:
        self.database, self.dies_at, self.moment = database, dies_at, moment

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        is_last = message.keys == self.dies_at
        if is_last and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with sqlite3.connect(self.database) as db:
            db.execute("INSERT INTO orders VALUES (?)", (message.keys,))
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        found = sqlite3.connect(self.database).execute("SELECT 1 FROM orders WHERE id = ?", (message.keys,)).fetchone()
        return LocalTransactionState.COMMIT_MESSAGE if found else LocalTransactionState.ROLLBACK_MESSAGE


def main(servers: str, prefix: str, database: str, name: str, moment: str) -> None:
    """Sends `NAME-0` to `NAME-9`; dies in the local transaction of the last, `before` or `after` that is committed."""
    listener = Orders(database, f"{name}-{COUNT - 1}", moment)
    where: dict[str, Any] = {"bootstrap_servers": servers, "topic_prefix": prefix}
    with TransactionMQProducer("shop", listener, **where, options=QUICK) as producer:
        for number in range(COUNT):
            producer.send_message_in_transaction(Message("orders", "a book", keys=f"{name}-{number}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
