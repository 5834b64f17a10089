"""A consumer: reads the topic table of orders as a stream and books a point for each whole unit of money paid."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from commitlake.errors import StreamError, root_reason

_NAME = "points"
_SCHEMA = "CREATE TABLE points (message_id TEXT PRIMARY KEY, order_id TEXT, customer TEXT, points INTEGER)"


class PointsService:
    """Books points in its own SQLite database; a message that it reads twice is booked once, by its id.

    Args:
        spark: a session with Delta.
        orders: the topic table.
        place: a directory for the database and the stream's checkpoint.
    """

    def __init__(self, spark: SparkSession, orders: str, place: Path) -> None:
        self._spark, self._orders = spark, orders
        self._database, self._checkpoint = place / "points.db", place / "points-checkpoint"
        self._query: StreamingQuery | None = None

    def __enter__(self) -> Self:
        with closing(sqlite3.connect(self._database)) as db, db:
            db.execute(_SCHEMA)
        messages = self._spark.readStream.format("delta").load(self._orders)
        writer = messages.writeStream.foreachBatch(self._book).option("checkpointLocation", str(self._checkpoint))
        self._query = writer.queryName(_NAME).trigger(processingTime="1 second").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._query:
            self._query.stop()

    def booked(self) -> list[str]:
        """Return the ids of the orders with points, one for each booking.

        Raises:
            StreamError: the stream has failed.
        """
        cause = self._query.exception() if self._query else None
        if cause:
            raise StreamError(_NAME, root_reason(cause)) from cause
        with closing(sqlite3.connect(self._database)) as db:
            return [row[0] for row in db.execute("SELECT order_id FROM points")]

    def _book(self, messages: DataFrame, batch_id: int) -> None:
        bookings = [_booking(row["message_id"], row["body"]) for row in messages.collect()]
        with closing(sqlite3.connect(self._database)) as db, db:
            db.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?)", bookings)


def _booking(message_id: str, body: bytes) -> tuple[str, str, str, int]:
    order = json.loads(body)
    return message_id, order["id"], order["customer"], order["amount"] // 100
