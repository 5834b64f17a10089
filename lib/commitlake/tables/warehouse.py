"""The few ways in which tables are created and appended to, and the check of every append."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from commitlake import config as configuration
from commitlake.config import Conf
from commitlake.config.locations import CATALOG, is_local
from commitlake.errors import WarehouseError
from commitlake.protocol import topic_names
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.protocol.version import __version__
from commitlake.reading import damage
from commitlake.spark import jvm
from commitlake.spark.files import FileSystem
from commitlake.spark.frames import arrow_rows, to_arrow, typed
from commitlake.spark.parallel import run_all
from commitlake.tables import direct_append, together, typed_topics
from commitlake.tables.columns import visible_at_sql
from commitlake.tables.creation import add_missing_columns, create_at_path, create_in_catalog, lacking
from commitlake.tables.direct_append import DirectAppend, StagedAppend
from commitlake.tables.existing_tables import TOPIC_PROPERTY, ExistingTables
from commitlake.tables.names import TableName
from commitlake.tables.schemas import APPEND_ONLY, TABLES, TOPIC, TOPIC_SINCE, TableLayout
from commitlake.tables.table_errors import explain_failure

log = logging.getLogger(__name__)

Marker = Mapping[str, Any]
Now = Callable[[], int] | None
_SIDE_BY_SIDE = 4
"""Up to so many tables get an append each: as many run at once, so one job for all of them is hardly faster."""
_NARROW_CATALOGS = ("spark_catalog", "hive_metastore")
"""Hive's names have letters, digits and underscores only."""


class AppendGuard:
    """Checks every append of a `Warehouse`; this base class lets all pass, which is enough under a lock."""

    fences = False
    """Whether others may have appends in flight, which `fence` makes fail."""

    def rows(self, rows: DataFrame) -> DataFrame:
        """The rows that are appended instead of `rows`; a subclass adds its check to their plan."""
        return rows

    def check(self) -> None:
        """Called between the begin of a transaction and its commit; raises if it must not be committed."""

    def for_tables(self, warehouse: Warehouse) -> AppendGuard:
        """The same guard for the same tables in another session."""
        del warehouse
        return self

    def fence(self, topics: Iterable[str]) -> None:
        """Makes appends that others have in flight to these topic tables fail, before the tables are read."""


class Warehouse(ExistingTables):
    """The tables, as their coordinator creates them and appends to them.

    Landing and coordination share one `Warehouse`, whose lock keeps two threads from creating the same table.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__(spark, root)
        self._lock = threading.Lock()
        self._known_topics: set[str] = set()
        self._staged: StagedAppend | None = None
        self._written = together.Written()
        self.guard = AppendGuard()
        self.values: Mapping[str, typed_topics.Value] = {}
        """The columns `value`, by topic with a schema."""

    def beside(self, spark: SparkSession) -> Warehouse:
        """The same tables in another session of the application, with the same guard."""
        other = Warehouse(spark, self.root)
        other.guard = self.guard.for_tables(other)
        return other

    def create(self) -> bool:
        """Creates the fixed tables and columns that are missing; returns whether there was no table.

        Raises:
            WarehouseError: A table has other columns than this version writes, or is damaged, or gone.
        """
        self._must_be_whole()
        with ThreadPoolExecutor(4) as pool:
            there = [*pool.map(self.holds, names := [*map(TableName, TABLES)])]
            if not all(there) and self.holds("epochs") and self._last_version() == __version__:
                gone = names[there.index(False)]
                msg = f"there is no table at {self.locate(gone)} any more, but others are; {damage.REMEDY}"
                raise WarehouseError(msg)
            list(pool.map(self._create_fixed, names, there))
        return not any(there)

    def _last_version(self) -> str | None:
        """The version of the last coordinator: at its start all tables of that version were there."""
        row = self.read("epochs").agg(F.max_by("version", "epoch").alias("last")).collect()[0]
        return None if row["last"] is None else str(row["last"])

    def add_topics(self, topics: Iterable[str]) -> None:
        """Creates the tables of those topics that `destinations` does not list, and lists them there."""
        wanted = set(topics)
        new = sorted(wanted - self.listed_topics()) if wanted else []
        if not new:
            return
        run_all(self.spark, [partial(self.ensure_topic, topic) for topic in new])
        names, now = {topic: self._name(TableName.of_topic(topic)) for topic in new}, as_datetime(now_ms())
        self.add([{"topic": each, "table": name, "created_at": now} for each, name in names.items()], "destinations")

    def may_hold(self, topic: str, others: Collection[str] = ()) -> bool:
        """Whether a new topic can have a table of its own here, beside the tables of `others`."""
        has_twin = topic_names.has_twin(topic, others)
        if not self._in_catalog:
            name = topic_names.path_name(topic)
            return not (has_twin and FileSystem(self.spark, self.root).has_in_other_letters("topics", name))
        catalog, dot, _ = self.root.removeprefix(CATALOG).partition(".")
        is_narrow = not dot or catalog in _NARROW_CATALOGS
        return not has_twin and (not is_narrow or re.fullmatch(r"[A-Za-z0-9_]+", topic) is not None)

    def ensure_topic(self, topic: str) -> None:
        """Creates the topic's table, or columns that one of an older version lacks; cheap when it is known."""
        with self._lock:
            if topic not in self._known_topics:
                name = TableName.of_topic(topic)
                explain_failure(self.locate(name), partial(self._ensure, name))
                self._known_topics.add(topic)

    def _ensure(self, name: TableName) -> None:
        if missing := lacking(self._create(name).toDF().schema, TOPIC, TOPIC_SINCE):
            log.warning("the table %s is of an older version: adding the columns %s", name, ", ".join(missing))
            self.add_columns(name, missing)

    def append(self, df: DataFrame | pa.Table, name: str, marker: Marker | None = None, *, few: bool = False) -> None:
        """Appends rows in one commit; the table of a topic must exist (`ensure_topic`).

        Args:
            df: Rows with at least the table's columns, in any order and width; an Arrow table has just them.
            name: The table.
            marker: Stored as JSON in the commit's userMetadata; see `markers`.
            few: Whether the driver may hold the rows (`small_files.are_few`).

        Raises:
            WarehouseError: The table can't be written.
        """
        marker = self._written.note(name, marker)
        explain_failure(self.locate(name), partial(self._append, df, name, marker, few))

    def add(self, rows: Iterable[Mapping[str, object]], name: str, marker: Marker | None = None) -> None:
        """Appends a few rows that the driver has, without a Spark job; else as `append`."""
        self.append(arrow_rows(rows, TableName(name).layout.schema), name, marker)

    def _append(self, df: DataFrame | pa.Table, name: str, marker: Marker | None, few: bool) -> None:
        direct, place = self._direct(), self.locate(name)
        if direct is not None and isinstance(df, DataFrame) and few:
            df = to_arrow(typed(df, self._layout(name).schema))
        if isinstance(df, pa.Table):
            if direct is not None and direct.append_few(df, place, self._layout(name), marker, self.guard.check):
                return
            df = self.spark.createDataFrame(df)
        if direct is not None and self._is_alone:
            direct.append(self._own(df, name), place, marker)
            return
        writer = self._own(df, name).write.format("delta").mode("append")
        if marker is not None:
            writer = writer.option("userMetadata", json.dumps(marker, separators=(",", ":")))
        self._save(writer, name)

    def append_to_topics(
        self, rows: DataFrame, topics: Sequence[str], marker: Marker, now: Now = None, *, few: bool = False
    ) -> None:
        """Appends rows to the tables of several topics, which are created where missing; each table gets one commit.

        Args:
            rows: Rows with `topic`; cached, or read again for each topic.
            topics: The topics of the rows.
            marker: Stored with each commit, as by `append`.
            now: Called right before the write, for `visible_at` (ms since epoch, UTC); None where rows have it.
            few: As in `append`, for the rows of all topics together.

        Raises:
            WarehouseError: A table can't be written; the others are.
        """
        run_all(self.spark, [partial(self.ensure_topic, topic) for topic in topics])
        rows = rows if now is None else rows.selectExpr("*", visible_at_sql(now()))
        values = explain_failure(self.root, partial(typed_topics.of_these, rows, topics, self.values))
        if few and len(topics) > 1 and self._direct() is not None:
            own = explain_failure(self.root, partial(typed_topics.by_topic, rows, topics, values))
            self._append_each(own, topics, marker, few=few)
            return
        typed_rows = typed_topics.of_topics(rows, topics, values)
        self._append_each(typed_rows.values(), typed_rows, marker, few=few)
        if plain := [topic for topic in topics if topic not in typed_rows]:
            self._append_plain(
                rows.where(~F.col("topic").isin([*typed_rows])) if typed_rows else rows, plain, marker, few
            )

    def _append_plain(self, rows: DataFrame, topics: Sequence[str], marker: Marker, few: bool) -> None:
        names = [*map(TableName.of_topic, topics)]
        if len(topics) > _SIDE_BY_SIDE and (staged := explain_failure(self.root, self._staging)) is not None:
            for name in names:
                self._written.note(name, marker)
            staged.append(rows, dict(zip(topics, map(self.locate, names), strict=True)), marker)
            return
        own = [rows if len(topics) == 1 else rows.where(F.col("topic") == topic) for topic in topics]
        self._append_each(own, topics, marker, few=few)

    def _append_each(
        self, own: Iterable[DataFrame | pa.Table], topics: Iterable[str], marker: Marker, *, few: bool
    ) -> None:
        each = zip(own, map(TableName.of_topic, topics), strict=True)
        run_all(self.spark, [partial(self.append, rows, name, marker, few=few) for rows, name in each])

    def _direct(self) -> DirectAppend | None:
        """None where Delta's writer must append."""
        return None if self._in_catalog else self._found_direct

    @property
    def _is_alone(self) -> bool:
        """Whether a table's newest commit is mostly one of this process, and nobody fences appends."""
        return is_local(self.root) and not self.guard.fences

    @cached_property
    def _found_direct(self) -> DirectAppend | None:
        return direct_append.found(self.spark, self.root)

    def _staging(self) -> StagedAppend | None:
        """None where each table needs an append of its own."""
        direct = self._direct()
        if direct is None or not self._is_alone:
            return None
        with self._lock:
            if self._staged is None:
                self._staged = StagedAppend(self.spark, direct, f"{self.root}/_staged")
        return self._staged

    def replace(self, df: DataFrame, name: str) -> None:
        """Replaces all rows of a table in one commit; errors are those of `append`."""
        writer = self._own(df, name).write.format("delta").mode("overwrite")
        explain_failure(self.locate(name), partial(self._save, writer, name))

    def _own(self, df: DataFrame, name: str) -> DataFrame:
        rows = self.guard.rows(typed(df, self._layout(name).schema))
        if self._in_catalog:
            jvm.activate(rows.sparkSession)
        return rows

    def _layout(self, name: str) -> TableLayout:
        table = TableName(name)
        return typed_topics.with_value(table.layout, self.values.get(table.topic or ""))

    def _save(self, writer: DataFrameWriter, name: str) -> None:
        (writer.saveAsTable if self._in_catalog else writer.save)(self.locate(name))

    def remove_files(self, name: str, condition: str, most: int, note: Callable[[list[str]], None]) -> int:
        """Takes files out of a table in one commit, which adds none; returns how many.

        Args:
            name: The table.
            condition: SQL on `path` and `stats` of Delta's entries; which files.
            most: How many files at most.
            note: Called with their names before they go.

        Raises:
            WarehouseError: Delta's own transactions can't be used here, as in a catalog.
        """
        direct = self._direct()
        if direct is None:
            msg = f"topics.retention: no file of {self.locate(name)} can be removed in a catalog, or with this Delta"
            raise WarehouseError(msg)
        begun = direct.begin(self.locate(name))
        files = direct.files(begun, condition, most)
        if files:
            note([file.path().rpartition("/")[2] for file in files])
            self.guard.check()
            direct.remove(files, begun)
        return len(files)

    def allow_changes(self, topic: str, pause: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """Lets rows of a topic's table be deleted and changed; the first time this is a commit of its own.

        Args:
            topic: The topic.
            pause: A context in which nobody appends: an append beside that commit would fail.
        """
        name = TableName.of_topic(topic)
        if self.property(name, APPEND_ONLY) == "true":
            with pause():
                self.set_property(name, APPEND_ONLY, "false")

    def _create(self, name: TableName) -> DeltaTable:
        if self._in_catalog:
            more = {} if name.topic is None else {TOPIC_PROPERTY: name.topic}
            return create_in_catalog(self.spark, self.locate(name), self._layout(name), more)
        return create_at_path(self.spark, self.locate(name), self._layout(name))

    def _create_fixed(self, name: TableName, is_there: bool) -> None:
        if is_there:
            add_missing_columns(self.spark, self._in_sql(name), self.read(name).columns, TABLES[name])
        else:
            explain_failure(self.locate(name), partial(self._create, name))


def read_table(spark: SparkSession, conf: Conf, name: str) -> DataFrame:
    """Read a table of the warehouse, such as `transactions` or `rejected`; topics are read by `read_topic`.

    Args:
        spark: a session with Delta, also one of Spark Connect.
        conf: the coordinator's configuration, its path, or its keys and values; `warehouse` counts.
        name: its name in the contract, chapter 3.

    Raises:
        NoTableError: there is no such table. Spark Connect raises Spark's own error, when the rows are read.
    """
    return Warehouse(spark, configuration.of(conf).warehouse).read(name)
