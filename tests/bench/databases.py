"""What the row that proves a local transaction costs in PostgreSQL.

    .venv/bin/python -m tests.bench.databases --seconds 5

One thread, one connection of SQLAlchemy with psycopg; a transaction is a row and a message of 256 B. Kafka is a list,
so that its time does not hide the database's, and the server does not wait for its disk. The ways take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sqlalchemy import Connection, create_engine, text
from tests.bench import rig
from tests.support import postgres

from commitlake import DatabaseListener, Message
from commitlake.testing import InMemoryCoordinator

BODY = b"." * 256
TURNS = 5


def main() -> None:
    """Measures and prints."""
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="for each way and turn")
    given = parser.parse_args()
    with postgres.cluster() as server:
        engine = create_engine(server.url().replace("://", "+psycopg://"))
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (item TEXT)"))
        proven = producer(DatabaseListener(engine, create=True))
        free = producer(None)
        ways: dict[str, Callable[[Connection], None]] = {
            "the rows alone": order,
            "with a message that nothing proves": lambda connection: beside(free, connection),
            "proven by a row": lambda connection: within(proven, connection),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        with engine.connect() as connection:
            for _ in range(TURNS):
                for name, way in ways.items():
                    took[name] += timed(lambda way=way: way(connection), given.seconds)  # type: ignore[misc]
    figures = {name: {"p50_ms": np.median(each), "p99_ms": np.percentile(each, 99)} for name, each in took.items()}
    rig.report("databases", given, figures)


def producer(listener: DatabaseListener | None) -> Any:
    """A producer of a coordinator in memory."""
    return InMemoryCoordinator().producer("bench", listener)


def order(connection: Connection) -> None:
    """The local transaction."""
    with connection.begin():
        connection.execute(text("INSERT INTO orders VALUES ('an espresso')"))


def beside(given: Any, connection: Connection) -> None:
    """A message whose decision the program sends, which a crash between both loses."""
    with given.begin_transaction(is_answered=True) as transaction:
        transaction.send(Message("orders", BODY))
        order(connection)


def within(given: Any, connection: Connection) -> None:
    """A message that ends as the local transaction."""
    with given.begin_transaction(database=connection) as transaction:
        connection.execute(text("INSERT INTO orders VALUES ('an espresso')"))
        transaction.send(Message("orders", BODY))


def timed(call: Callable[[], None], seconds: float) -> list[float]:
    """The ms of each call; the first tenth is not counted."""
    took, end = [], time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        call()
        took.append(1_000 * (time.perf_counter() - begun))
    return took[len(took) // 10 :]


if __name__ == "__main__":
    main()
