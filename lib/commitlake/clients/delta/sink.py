"""`commitlake.sink`: the rows of a streaming query as messages, each once, even if a micro-batch is repeated.

The half messages of a micro-batch go out first. The local transaction is then one commit to the small Delta table
`sinks`: it marks all their transactions and notes the sink's micro-batch. A repeated micro-batch finds that note. After
a kill of the driver the marks answer the checks (`clients.delta.marks`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from commitlake import config as configuration
from commitlake.clients.delta import marks
from commitlake.clients.delta.allowed_places import SINKS, properties
from commitlake.clients.delta.delta_transaction import absolute, deadline_ms, warn_without_rule
from commitlake.clients.producer.message import Message
from commitlake.clients.producer.transaction import Transaction
from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.clients.renamed import renamed
from commitlake.config import Conf, Config
from commitlake.config.object_store import storage_options
from commitlake.config.terminal import printable
from commitlake.errors import ArgumentError, ProducerError, RecordError, RefusedSendError, WarehouseError
from commitlake.protocol.durations import Duration
from commitlake.protocol.wire import MAX_HALF_MESSAGES
from commitlake.reading.forks import refuse_fork

log = logging.getLogger(__name__)

FIELDS = ("body", "keys", "tags", "sharding_key")
_THREADS = 8
"""Sending threads: each send waits some milliseconds for its acknowledgement."""
_ON_INVALID = ("fail", "skip")
_KEPT = "30 days"
_OF_ONE_ROW = ("BODY_TOO_LARGE", "ILLEGAL_MESSAGE_TAG")
"""Reasons of refusals that concern a single row; all others, such as those about the topic, concern every row."""


@renamed(unfit="on_invalid")
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
    on_invalid: str = "fail",
    begins: int = 0,
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch` that sends each row of a micro-batch as a message of the topic, once.

    All messages of a micro-batch are committed, or none. The coordinator needs the rule
    `checks: {<group>: {table: delta-log}}`. Rows go through the driver, so a micro-batch should have thousands of rows,
    not millions.

    Args:
        conf: the coordinator's configuration; the keys of Kafka, `checks`, and the place of receipts count.
        topic: destination topic.
        name: name of this sink, which must stay as long as its query has the same checkpoint: under this name the sink
            notes its last micro-batch.
        group: producer group.
        body: SQL of the body, a string or binary.
        keys: SQL of the business keys. A binary column is read as UTF-8, others as Spark's text; the same with `tags`.
        tags: SQL of the tags.
        sharding_key: SQL of the key that keeps an order; a binary one may have any bytes.
        deadline: how long a micro-batch may take, such as `1h`; a later one is rolled back, and the query repeats it.
        on_invalid: for a row that can't be a message (its body is NULL or too large, its keys are not UTF-8, its tag
            has `||`): `fail` ends the query with an error that names the row, `skip` leaves it out with a warning.
        begins: the first micro-batch to send: 0, or a later one of a query that had another sink before.

    Raises:
        ArgumentError: the deadline is no duration, or `on_invalid` is none of these.
        ConfigError: the configuration is wrong, or does not say where an embedded broker is.
    """
    if on_invalid not in _ON_INVALID:
        msg = f"sink: on_invalid: {on_invalid!r} is not allowed; allowed is {' or '.join(_ON_INVALID)}"
        raise ArgumentError(msg)
    settings = configuration.of(conf)
    settings.kafka.with_address()  # fails here, not in each micro-batch
    ms = deadline_ms("sink", deadline)
    warn_without_rule("sink", settings, group)
    columns = {"body": body, "keys": keys, "tags": tags, "sharding_key": sharding_key}
    place = absolute(f"{settings.receipts_place}/{SINKS}")
    _create(place)
    return _Sink(settings, topic, name, group, columns, ms, on_invalid == "skip", begins, place)


@dataclass(frozen=True, eq=False, repr=False)  # a text of it might show secrets of the configuration
class _Sink:
    settings: Config
    topic: str
    name: str
    group: str
    columns: Mapping[str, str | None]
    deadline_ms: int
    skips: bool
    begins: int
    place: str

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Send the rows of a micro-batch, unless they were sent before.

        Raises:
            WarehouseError: it is unknown whether the micro-batch was sent before, or its deadline has passed.
            RefusedSendError: a row can't be a message, and `on_invalid` is `fail`.
        """
        reached = marks.reached(self.place, self.name)
        if reached >= batch_id:
            return
        if reached < 0 and batch_id > self.begins:
            msg = (
                f"sink {self.name}: nothing says whether micro-batch {batch_id} was sent: no mark of this name is in "
                f"{self.place}, which forgets them after {_KEPT}. If it was, start the query from a new checkpoint; "
                f"if it was not, or another sink was here before, say begins={batch_id}"
            )
            raise WarehouseError(msg)
        rows = enumerate(selected(frame, self.columns).toLocalIterator())
        invalid: list[str] = []
        with TransactionMQProducer.from_conf(self.settings, self.group) as producer:
            sent: dict[str, Transaction] = {}
            try:
                self._send(producer, rows, sent, invalid)
            except BaseException:
                self._roll_back(sent)
                raise
            if invalid:
                told = (self.name, len(invalid), batch_id, invalid[0])
                log.warning("sink %s: %d rows of micro-batch %d are left out, one of them: %s", *told)
            if marks.put(self.place, [*sent], marks.WRITTEN, after=(self.name, batch_id)):
                for transaction in sent.values():
                    transaction.commit()
            else:  # another driver has sent this micro-batch, or its deadline had passed
                self._roll_back(sent)
        if marks.reached(self.place, self.name) < batch_id:
            msg = f"sink {self.name}: micro-batch {batch_id} was not sent before its deadline; the query does it again"
            raise WarehouseError(msg)

    def _send(
        self,
        producer: TransactionMQProducer,
        rows: Iterable[tuple[int, Any]],
        sent: dict[str, Transaction],
        invalid: list[str],
    ) -> None:
        """Send all rows as half messages, up to `MAX_HALF_MESSAGES` a transaction; `invalid` gets texts of the others.

        Several threads send. One thread sends all rows of a sharding key, to keep their order.
        """
        told = properties([self.place], self.deadline_ms)

        def send(chunk: list[tuple[int, Any]]) -> None:
            name, transaction = marks.new_id(), producer.begin_transaction(is_answered=True)
            sent[name] = transaction
            for number, row in chunk:
                try:
                    message = message_of(row, self.topic, told)
                    message.transaction_id = name
                    transaction.send(message)
                except (RecordError, ProducerError) as error:
                    invalid.append(self._invalid(number, row, error))

        def send_all(lane: list[tuple[int, Any]]) -> None:
            for chunk in _chunks(lane):
                send(chunk)

        lanes = _lanes(list(rows))
        with ThreadPoolExecutor(len(lanes)) as pool:
            for _ in pool.map(send_all, lanes):
                pass

    def _invalid(self, number: int, row: Any, error: RecordError | ProducerError) -> str:
        """The text about a row that is left out.

        Raises:
            RefusedSendError: `on_invalid` is `fail`.
            ProducerError: the error does not concern this row.
        """
        if isinstance(error, ProducerError) and error.reason not in _OF_ONE_ROW:
            raise error
        shown = ", ".join(f"{field} {row[field]!r:.80}" for field in ("keys", "tags", "sharding_key"))
        found = printable(f"row {number} ({shown}): {error}")
        if self.skips:
            return found
        remedy = "leave such rows out by a filter or by on_invalid='skip', or change the columns"
        msg = f"sink {self.name}: {found}; {remedy}"
        raise RefusedSendError(msg, error.reason) from error

    def _roll_back(self, sent: dict[str, Transaction]) -> None:
        """Roll back the transactions, after a fence, so that none of them can be marked as written later."""
        if not sent or marks.put(self.place, [*sent], marks.FENCED) or self._are_fenced(sent):
            for transaction in sent.values():
                transaction.rollback()

    def _are_fenced(self, sent: dict[str, Transaction]) -> bool:
        return marks.FENCED in {marks.fence(self.place, name) for name in sent}


def _create(place: str) -> None:
    """Create the table of marks if it is missing; it never has rows."""
    refuse_fork()
    keep = {"delta.setTransactionRetentionDuration": f"interval {_KEPT}"}
    DeltaTable.create(
        place, pa.schema([("name", pa.string())]), mode="ignore", configuration=keep, storage_options=storage_options()
    )


def _lanes(rows: list[tuple[int, Any]]) -> list[list[tuple[int, Any]]]:
    """Lists of rows, with their numbers, that may be sent concurrently; rows of one sharding key are in one list."""
    lanes: list[list[tuple[int, Any]]] = [[] for _ in range(max(1, min(_THREADS, len(rows) // MAX_HALF_MESSAGES)))]
    for number, row in rows:
        key = row["sharding_key"]
        lane = number if key is None else hash(key if isinstance(key, str) else bytes(key))
        lanes[lane % len(lanes)].append((number, row))
    return lanes


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    several = iter(rows)
    while chunk := list(itertools.islice(several, MAX_HALF_MESSAGES)):
        yield chunk


def selected(frame: DataFrame, columns: Mapping[str, str | None]) -> DataFrame:
    """The columns of messages, by SQL for each of `FIELDS`, None for NULL.

    Binary columns stay as they are, all others become Spark's text of them.

    Raises:
        ArgumentError: the body is neither a string nor binary, so a reader could not know its format.
    """
    made = frame.select(*(F.expr(columns[name] or "CAST(NULL AS STRING)").alias(name) for name in FIELDS))
    kinds = {field.name: field.dataType for field in made.schema}
    if not isinstance(kinds["body"], StringType | BinaryType):
        msg = (
            f"sink: body: {columns['body']!r} is {kinds['body'].simpleString()}, allowed is a string or binary; write "
            f"for example CAST({columns['body']} AS STRING), or to_json(struct(*))"
        )
        raise ArgumentError(msg)
    is_binary = {name: isinstance(kind, BinaryType) for name, kind in kinds.items()}
    return made.select(*(F.col(name) if is_binary[name] else F.col(name).cast("string") for name in FIELDS))


def message_of(row: Mapping[str, Any], topic: str, properties: dict[str, str]) -> Message:
    """The message of a row with `FIELDS`, each a string, bytes, or None.

    Raises:
        RecordError: `NULL_BODY`, or keys or tags that are not UTF-8.
    """
    if row["body"] is None:
        msg = "its body is NULL"
        raise RecordError(msg, "NULL_BODY")
    body, key = row["body"], row["sharding_key"]
    return Message(
        topic,
        body if isinstance(body, str) else bytes(body),
        keys=_text("keys", row["keys"]),
        tags=_text("tags", row["tags"]),
        sharding_key=key if key is None or isinstance(key, str) else bytes(key),
        properties=properties,
    )


def _text(name: str, value: Any) -> str | None:
    """A text column's value; Spark's binary, a bytearray, is decoded as UTF-8."""
    if value is None or isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        msg = f"its {name} are {bytes(value)[:40]!r}, which is not UTF-8; write for example hex({name})"
        raise RecordError(msg) from error
