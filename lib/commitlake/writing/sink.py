"""`commitlake.sink`: the rows of a streaming query as messages, each once, also when a micro-batch is done again.

The half messages of a micro-batch go out first. Then one commit in a small Delta table, `sinks`, marks all their
transactions and says that the sink has come so far; it is the local transaction. Whoever does the batch again finds
that it has, and what a killed driver left is answered by the marks (`writing.marks`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake import config as configuration
from commitlake.config import Conf, Config
from commitlake.errors import WarehouseError
from commitlake.producer.message import Message
from commitlake.producer.transaction import Transaction
from commitlake.producer.transactional import TransactionMQProducer
from commitlake.protocol.durations import Duration
from commitlake.protocol.wire import MAX_HALF_MESSAGES
from commitlake.writing import marks
from commitlake.writing.allowed_places import SINKS
from commitlake.writing.producing import absolute, deadline_ms, producer_of
from commitlake.writing.properties import properties

_THREADS = 8
"""A send waits for its acknowledgement, some milliseconds."""
_FIELDS = ("body", "keys", "tags", "sharding_key")


def sink(
    conf: Conf,
    topic: str,
    *,
    name: str,
    group: str,
    body: str = "value",
    keys: str | None = None,
    tags: str | None = None,
    sharding_key: str | None = None,
    deadline: Duration = "1h",
) -> Callable[[DataFrame, int], None]:
    """What `writeStream.foreachBatch` calls: sends each row of a micro-batch as a message of the topic, once.

    All messages of a micro-batch are committed, or none. The coordinator needs the rule
    `checks: {<group>: {table: delta-log}}`. Rows go through the driver, so a micro-batch should have thousands of them,
    not millions.

    Args:
        conf: the configuration of the coordinator; Kafka, and where receipts are, count.
        topic: destination.
        name: of this sink, for as long as its query has the same checkpoint: it says how far the sink has come.
        group: producer group.
        body: SQL of the body, a string or binary.
        keys: SQL of the business keys.
        tags: SQL of the tags.
        sharding_key: SQL of what keeps an order.
        deadline: how long a micro-batch may take, such as `1h`; a driver that comes later sends nothing.

    Raises:
        ConfigError: the Kafka address is `embedded`, or the deadline is no duration.
    """
    settings = configuration.of(conf)
    ms = deadline_ms("sink", settings, deadline)
    named = zip(_FIELDS, (body, keys, tags, sharding_key), strict=True)
    columns = [F.expr(given or "CAST(NULL AS STRING)").alias(field) for field, given in named]
    return _Sink(settings, topic, name, group, columns, ms)


class _Sink:
    def __init__(
        self, settings: Config, topic: str, name: str, group: str, columns: list[Column], deadline_ms: int
    ) -> None:
        self._settings, self._topic, self._name, self._group = settings, topic, name, group
        self._columns, self._deadline_ms = columns, deadline_ms
        self._place = absolute(f"{settings.receipts_place}/{SINKS}")
        _create(self._place)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Send the rows of a micro-batch, unless that was done before."""
        if marks.reached(self._place, self._name) >= batch_id:
            return
        rows = frame.select(*self._columns).toLocalIterator()
        with producer_of(self._settings, self._group) as producer:
            sent: dict[str, Transaction] = {}
            try:
                self._send(producer, rows, sent)
            except BaseException:
                self._roll_back(sent)
                raise
            if marks.put(self._place, [*sent], marks.WRITTEN, after=(self._name, batch_id)):
                for transaction in sent.values():
                    transaction.commit()
            else:  # another driver has done this batch, or the deadline was over
                self._roll_back(sent)
        if marks.reached(self._place, self._name) < batch_id:
            msg = f"sink {self._name}: micro-batch {batch_id} was not sent before its deadline; the query does it again"
            raise WarehouseError(msg)

    def _send(self, producer: TransactionMQProducer, rows: Iterable[Any], sent: dict[str, Transaction]) -> None:
        """Send all rows as half messages, `MAX_HALF_MESSAGES` a transaction."""
        told = properties([self._place], self._deadline_ms)

        def send(chunk: list[Any]) -> None:
            name, transaction = marks.new_id(), producer.begin_transaction(is_answered=True)
            sent[name] = transaction
            for row in chunk:
                given = {field: row[field] for field in _FIELDS}
                message = Message(self._topic, _body(given.pop("body")), properties=told, **_texts(given))
                message.transaction_id = name
                transaction.send(message)

        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(send, _chunks(rows)):
                pass

    def _roll_back(self, sent: dict[str, Transaction]) -> None:
        """First the fence: nobody may find the transactions written after that."""
        if not sent or marks.put(self._place, [*sent], marks.FENCED) or self._are_fenced(sent):
            for transaction in sent.values():
                transaction.rollback()

    def _are_fenced(self, sent: dict[str, Transaction]) -> bool:
        return marks.FENCED in {marks.fence(self._place, name) for name in sent}


def _create(place: str) -> None:
    """The table of marks; it has no rows."""
    keep = {"delta.setTransactionRetentionDuration": "interval 30 days"}
    DeltaTable.create(place, pa.schema([("name", pa.string())]), mode="ignore", configuration=keep)


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    several = iter(rows)
    while chunk := list(itertools.islice(several, MAX_HALF_MESSAGES)):
        yield chunk


def _body(body: object) -> bytes | str:
    """A body as a message takes it; Spark's binary is a bytearray."""
    return body if isinstance(body, str) else bytes(body)  # type: ignore[call-overload]


def _texts(given: Mapping[str, object]) -> dict[str, Any]:
    return {name: None if value is None else str(value) for name, value in given.items()}
