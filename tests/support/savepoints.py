"""Every order of a block, its savepoints and its sends, with the end of each: rows and messages stay together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from commitlake import FailedSendError
from commitlake.testing import Fault


class Client(Protocol):
    """A connection to a database of orders, and the producer beside it."""

    producer: Any

    def order(self, name: str = "17") -> Any:
        """Inserts an order."""

    def run(self, sql: str) -> Any:
        """Runs a statement."""

    def savepoint(self) -> AbstractContextManager[Any]:
        """A savepoint of the client's own."""


Send = Callable[..., object]
"""Sends a message, to the topic of orders or another one."""
Steps = Callable[[Client, Send], None]


def released(client: Client, send: Send) -> None:
    with client.savepoint():
        client.order()
    send()


def released_with_a_send(client: Client, send: Send) -> None:
    with client.savepoint(), client.savepoint():
        client.order()
        send()


def raised_after(client: Client, send: Send) -> None:
    released(client, send)
    raise ValueError("sold out")


def raised_before_the_send(client: Client, send: Send) -> None:
    with client.savepoint():
        client.order()
    raise ValueError("sold out")


def sent_and_rolled_back(client: Client, send: Send) -> None:
    with suppress(ValueError), client.savepoint():
        client.order()
        send()
        raise ValueError


def sent_and_rolled_back_from_outside(client: Client, send: Send) -> None:
    send()
    with suppress(ValueError), client.savepoint():
        with client.savepoint():
            client.order()
            send()
        raise ValueError


def sent_and_rolled_back_by_sql(client: Client, send: Send) -> None:
    client.run("SAVEPOINT here")
    client.order()
    send()
    client.run("ROLLBACK TO here")


def sent_after_what_was_rolled_back(client: Client, send: Send) -> None:
    sent_and_rolled_back(client, send)
    send()


def failed_outside_and_rolled_back(client: Client, send: Send) -> None:
    client.producer.fault = Fault.KAFKA_AWAY
    with suppress(FailedSendError):
        send()
    sent_and_rolled_back(client, send)


def failed_and_sent_again(client: Client, send: Send) -> None:
    client.order()
    client.producer.fault = Fault.KAFKA_AWAY
    with suppress(FailedSendError):
        send()
    send()


def refused_and_rolled_back(client: Client, send: Send) -> None:
    client.order()
    send()
    with suppress(FailedSendError), client.savepoint():
        send("no topic!")


def rolled_back_without_a_send(client: Client, send: Send) -> None:
    send()
    client.order()
    with suppress(ValueError), client.savepoint():
        client.order("18")
        raise ValueError
    send()


LOST = "a savepoint of the database in which a message was sent was rolled back"

EVERY_ORDER = [
    (released, None),
    (released_with_a_send, None),
    (raised_after, "sold out"),
    (raised_before_the_send, "sold out"),
    (sent_and_rolled_back, LOST),
    (sent_and_rolled_back_from_outside, LOST),
    (sent_and_rolled_back_by_sql, LOST),
    (sent_after_what_was_rolled_back, LOST),
    (failed_outside_and_rolled_back, LOST),
    (failed_and_sent_again, None),
    (refused_and_rolled_back, None),
    (rolled_back_without_a_send, None),
]
"""Steps, and the text of the error that ends the block; without one an order and its message are there."""
