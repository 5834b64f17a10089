"""`commitlake.delta_transaction`: messages become visible exactly when rows are appended to Delta tables.

First the half messages go out, which name the tables and a deadline. Then come the tables' commits, each with the
transaction's mark, then the decision. After a kill at any point the tables' logs have the answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from commitlake import config as configuration
from commitlake.clients.delta import marks
from commitlake.clients.delta.allowed_places import DELTA_LOG, AllowedPlaces, properties
from commitlake.clients.producer.message import Message
from commitlake.clients.producer.record_maker import topic_of
from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.config import Conf, Config
from commitlake.config.locations import is_local, local_path
from commitlake.errors import ArgumentError, CommitLakeError, ConfigError, RecordError, WarehouseError
from commitlake.protocol.durations import Duration, duration_ms

log = logging.getLogger(__name__)

_NAME = re.compile(r"\w+(\.\w+){2}")


class _Append(NamedTuple):
    """Rows for a table as it was named, and its place, which is the same for a path."""

    rows: DataFrame
    table: str
    place: str


@contextmanager
def delta_transaction(
    spark: SparkSession, conf: Conf, group: str, *, deadline: Duration = "1h"
) -> Iterator[DeltaTransaction]:
    """A transaction of messages and appends to Delta tables, which ends with its `with` block.

    The coordinator needs the rule `checks: {<group>: {table: delta-log, places: [...]}}`, and the tables must be below
    these places. By the rule it ends the transactions of a killed process.

    Args:
        spark: a session with Delta, also one of Spark Connect.
        conf: the coordinator's configuration; the keys of Kafka count, and `checks`, if it is there.
        group: the producer group.
        deadline: how long after the first half message rows may be written, such as `1h`. Later rows are refused.

    Raises:
        ArgumentError: the deadline is no duration, or the rule of the group in `conf` does not allow a table.
        ConfigError: the configuration is wrong, or does not say where an embedded broker is.
        ProducerError: a message is refused.
        WarehouseError: a table is missing, or the deadline had passed; then nothing is visible.
    """
    settings = configuration.of(conf)
    ms = deadline_ms("delta_transaction", deadline)
    warn_without_rule("delta_transaction", settings, group)
    with TransactionMQProducer.from_conf(settings, group) as producer:
        transaction = DeltaTransaction(spark, producer, ms, _allowed(settings, group))
        try:
            yield transaction
            transaction.commit()
        except BaseException:
            try:
                transaction.give_up()
            except CommitLakeError as error:
                log.warning("the transaction %s is left to its checks: %s", transaction.transaction_id, error)
            raise


class DeltaTransaction:
    """Made by `delta_transaction`. For one thread.

    Args:
        spark: a session with Delta.
        producer: a running producer.
        deadline_ms: time from the first half message to the last commit of a table, ms.
        allowed: the places where the coordinator may look; None when its rules are not known here.

    Attributes:
        transaction_id: id of the transaction, in the ledger and as `txnAppId` in the tables' logs.
    """

    def __init__(
        self,
        spark: SparkSession,
        producer: TransactionMQProducer,
        deadline_ms: int,
        allowed: AllowedPlaces | None = None,
    ) -> None:
        self._spark, self._deadline_ms, self._allowed = spark, deadline_ms, allowed
        self._messages: list[Message] = []
        self._appends: list[_Append] = []
        self._places: list[str] = []
        self._halves = producer.begin_transaction(is_answered=True)
        self.transaction_id = marks.new_id()
        self._options = {"txnAppId": self.transaction_id, "txnVersion": str(marks.WRITTEN)}

    def send(self, message: Message) -> None:
        """Add a message, which is sent when the transaction commits; its body is read then."""
        self._need_open()
        topic_of(message)
        self._messages.append(message)

    def append(self, rows: DataFrame, place: str) -> None:
        """Add rows, which the commit appends to a Delta table.

        Args:
            rows: the rows.
            place: the table's path or URI, where a missing table is created; or `catalog.schema.table`.

        Raises:
            ArgumentError: there is no table of that name.
        """
        self._need_open()
        self._appends.append(_Append(rows, place, _located(self._spark, place)))

    def delta_options(self, *places: str) -> dict[str, str]:
        """Options for your own writers, which write to these tables within the `with` block, once each.

        This call sends the half messages, so call it after `send` and `append`. The tables must exist.
        """
        named = [_located(self._spark, place) for place in places]
        self._prepare([*(each.place for each in self._appends), *named])
        return dict(self._options)

    def commit(self) -> None:
        """Append the rows, and commit the messages."""
        if not self._places:
            self._prepare([each.place for each in self._appends])
        for rows, table, place in self._appends:
            writer = rows.write.format("delta").mode("append").options(**self._options)
            # Unity Catalog takes no path of a table that it manages.
            writer.save(place) if table == place else writer.saveAsTable(table)
        self._end(is_over=False)

    def give_up(self) -> None:
        """Roll back, and let no more rows in. If all tables have their rows already, the messages are committed."""
        if self._places:
            self._end(is_over=True)

    def _end(self, is_over: bool) -> None:
        found = marks.decision(self._places, self.transaction_id, is_over)
        if found == "COMMIT":
            self._halves.commit()
        elif found == "ROLLBACK":
            self._halves.rollback()
        if found != "COMMIT" and not is_over:
            why = "its deadline is over" if found else "no rows with the options of delta_options() were written"
            msg = f"the transaction {self.transaction_id} is not committed: {why}; look at {', '.join(self._places)}"
            raise WarehouseError(msg)

    def _prepare(self, places: list[str]) -> None:
        """Send the half messages, which name all tables that get rows."""
        self._need_open()
        if not self._messages or not places:
            msg = "delta_transaction: it has no message or no table; call send(), and append() or delta_options()"
            raise ConfigError(msg)
        named = [absolute(place) for place in places]
        for place in named:
            if named.count(place) > 1:
                msg = f"delta_transaction: {place} gets rows twice, and Delta would skip the second; unite them"
                raise ArgumentError(msg)
            _check(self._allowed, place)
        for rows, table, place in self._appends:
            if table == place:
                _create(self._spark, rows, place)
        self._places = named
        for place in self._places:
            marks.mark(place, self.transaction_id)  # raises before anything is sent, if a table can't be read
        told = properties(named, self._deadline_ms)
        for message in self._messages:
            if isinstance(message.properties, dict):  # the producer refuses any other type
                message.properties |= told
            self._send(message)

    def _send(self, message: Message) -> None:
        message.transaction_id = self.transaction_id
        try:
            self._halves.send(message)
        finally:  # mark it as this attempt's id, which the application has not chosen
            message.transaction_id = None
            message.take_part_in(self.transaction_id)

    def _need_open(self) -> None:
        if self._places:
            msg = "delta_transaction: its half messages are sent, and name its tables; call delta_options() last"
            raise ConfigError(msg)


def _allowed(settings: Config, group: str) -> AllowedPlaces | None:
    rule = settings.checks.get(group)
    if rule is None or rule.get("table") != DELTA_LOG:
        return None
    return AllowedPlaces(settings, group, rule.get("places", ()))


def _check(allowed: AllowedPlaces | None, place: str) -> None:
    try:
        if allowed is not None:
            allowed.check(place)
    except RecordError as error:  # `RecordError` is for records, and not a public error of the package
        msg = f"delta_transaction: {error}"
        raise ArgumentError(msg) from error


def _located(spark: SparkSession, place: str) -> str:
    """The place of a table that is named `catalog.schema.table`: half messages tell places. Any other as it is."""
    if not _NAME.fullmatch(place):
        return place
    msg = f"delta_transaction: there is no Delta table {place}; make it first, or write ./{place} for a directory"
    try:
        found = spark.sql(f"DESCRIBE DETAIL {place}").select("format", "location").collect()[0]
    except AnalysisException as error:
        raise ArgumentError(msg) from error
    if found["format"] != "delta":
        raise ArgumentError(msg)
    return str(found["location"])


def _create(spark: SparkSession, rows: DataFrame, place: str) -> None:
    """Creates a missing table, without Delta's own classes, which not every server of Spark Connect has."""
    spark.createDataFrame([], rows.schema).write.format("delta").mode("ignore").save(place)


def deadline_ms(what: str, deadline: Duration) -> int:
    """The deadline in ms.

    Raises:
        ArgumentError: `deadline` is no duration above 0.
    """
    ms = duration_ms(deadline)
    if not ms:
        msg = f"{what}: deadline {deadline!r} is not allowed; give a time such as '1h'"
        raise ArgumentError(msg)
    return ms


def warn_without_rule(what: str, settings: Config, group: str) -> None:
    """Warn if the configuration has rules, but none that ends the transactions of a killed job of the group."""
    if settings.checks and settings.checks.get(group, {}).get("table") != DELTA_LOG:
        log.warning(
            "%s: `checks` has no rule %s: {table: %s}, so nobody ends what a killed job of this group leaves; add it, "
            "or check the group; rules are there for: %s",
            *(what, group, DELTA_LOG, ", ".join(settings.checks)),
        )


def absolute(place: str) -> str:
    """A place in absolute form, since the coordinator has another working directory."""
    return str(local_path(place).absolute()) if is_local(place) else place
