"""Appends by Delta's own transactions; to local tables each begins at the state of the table that this JVM knows.

Delta's writer lists the table's whole log, two or three times an append: with 500 rows it took 118 ms after 400 commits
and 156 ms after 1 200. This way it takes 78 ms, and one append in some tens lists the log. The commit is Delta's own:
its conflict check, log store, checkpoints and statistics are those of any append.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from commitlake.config.locations import is_local, local_path
from commitlake.errors import WarehouseError
from commitlake.spark.files import FileSystem
from commitlake.tables import small_files
from commitlake.tables.commits import file_name
from commitlake.tables.creation import is_as_made
from commitlake.tables.names import CHECKPOINT_INTERVALS
from commitlake.tables.schemas import TableLayout

log = logging.getLogger(__name__)

_CLASSES = (
    *("java.lang.Class", "java.util.ArrayList", "java.util.List"),
    *("scala.Option", "scala.jdk.javaapi.CollectionConverters"),
    *("org.apache.spark.sql.SaveMode", "org.apache.spark.sql.SparkSession"),
    *("org.apache.spark.sql.delta.DeltaLog", "org.apache.spark.sql.delta.actions.Action"),
)
_MOST_COMMITS = max(CHECKPOINT_INTERVALS) + 1
"""Since the checkpoint with which the known state begins: of a newer one it learns by a look through the log only, and
all commits since the older one would be kept, and read for the next one."""
_WRITE = "org.apache.spark.sql.delta.DeltaOperations$Write"


class DirectAppend:
    """Appends to tables below a place.

    On local disks only for tables with one writer, whose other commits come from this JVM, such as those of
    maintenance; two of these at once are Delta's conflict, as always. Those of other processes are seen, too, at the
    cost of a look through the log, but for one that comes while this one is written: there Delta's log stores look, and
    then write. Off local disks each append looks through the log.

    Args:
        spark: the session that appends.
        place: the place.

    Raises:
        Py4JError: a platform locks the internal classes of Delta away that it takes.
        TypeError: this version of Delta lacks them.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._spark = spark
        jvm: Any = spark.sparkContext._jvm
        # By their whole names: for each part of one, such as `java`, the JVM looks through all jars in vain. That took
        # two fifths of a commit's CPU.
        self._jvm = SimpleNamespace(**{name.rpartition(".")[2]: getattr(jvm, name) for name in _CLASSES})
        self._write_operation, self._none = getattr(jvm, _WRITE), self._jvm.Option.empty()
        self.operation(None)
        self._begun(place)

    def append(self, rows: DataFrame, table: str, marker: Mapping[str, Any] | None) -> None:
        """Appends rows to a table in one commit; none where there are no rows.

        Args:
            rows: with just the table's columns.
            table: its place; it must exist.
            marker: stored as JSON in the commit's userMetadata.
        """
        begun = self.begin(table)
        files = begun.writeFiles(rows._jdf)
        if not files.isEmpty():
            begun.commit(files, self.operation(marker))

    def append_few(
        self,
        rows: pa.Table,
        table: str,
        layout: TableLayout,
        marker: Mapping[str, Any] | None,
        check: Callable[[], None] = lambda: None,
    ) -> bool:
        """Appends rows that the driver has, as `append`; returns False where only Delta's writer knows the table.

        Args:
            rows: with just the table's columns.
            table: its place, which may be off local disks; it must exist.
            layout: the columns that it was made with.
            marker: as of `append`.
            check: is called between the begin of the transaction and its commit, and raises where there may be none.
        """
        begun = self.begin(table)
        if not is_as_made(begun.metadata(), layout):
            return False
        if rows.num_rows:
            adds = small_files.written(rows, layout, self._codec, partial(self._write, table))
            check()
            self.commit(adds, begun, self.operation(marker))
        return True

    def _write(self, table: str, path: str, content: bytes) -> None:
        if not is_local(table):
            FileSystem(self._spark, table).write(path, content)
            return
        file = local_path(table) / path
        if file.parent != local_path(table):
            file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)

    @cached_property
    def _codec(self) -> str:
        return str(self._spark.conf.get("spark.sql.parquet.compression.codec")).lower()

    def begin(self, table: str) -> Any:
        """A transaction of Delta on a table.

        Raises:
            WarehouseError: it is not there any more.
        """
        begun = self._begun(table)
        if begun.readVersion() < 0:
            msg = f"there is no table at {table} any more"
            raise WarehouseError(msg)
        return begun

    def _begun(self, table: str) -> Any:
        session: Any = self._spark._jsparkSession
        self._jvm.SparkSession.setActiveSession(session)  # of this thread
        found = self._jvm.DeltaLog.forTable(session, table)
        known = found.unsafeVolatileSnapshot()
        is_newest = is_local(table) and _is_newest(known.logSegment(), local_path(table) / "_delta_log")
        return found.startTransaction(self._none, self._jvm.Option.apply(known) if is_newest else self._none)

    def operation(self, marker: Mapping[str, Any] | None) -> Any:
        """What the log says of a commit: an append; later versions of Delta have further, optional fields."""
        by = self._jvm.Option.apply(self._seq(self._jvm.List.of()))  # as the writer of an append gives it
        text = self._none if marker is None else self._jvm.Option.apply(json.dumps(marker, separators=(",", ":")))
        given = [self._jvm.SaveMode.Append, by, self._none, text]
        return self._write_operation(*given, *[self._none] * (self._fields - len(given)))

    @cached_property
    def _fields(self) -> int:
        (made,) = self._jvm.Class.forName(_WRITE).getConstructors()
        return int(made.getParameterCount())

    def written(self, rows: DataFrame, table: str) -> list[dict[str, Any]]:
        """Writes the files of an append and does not commit them; returns Delta's `add` actions."""
        actions = self.begin(table).writeFiles(rows._jdf)
        return [json.loads(action.json())["add"] for action in self._jvm.CollectionConverters.asJava(actions)]

    def commit(self, adds: Sequence[Mapping[str, Any]], begun: Any, operation: Any) -> None:
        """Commits files that are in a table's directory, by a transaction on it."""
        actions = self._jvm.ArrayList()
        for add in adds:
            actions.add(self._jvm.Action.fromJson(json.dumps({"add": add})))
        begun.commit(self._seq(actions), operation)

    def _seq(self, items: Any) -> Any:
        return self._jvm.CollectionConverters.asScala(items).toSeq()


def _is_newest(known: Any, commits: Path) -> bool:
    """Whether a table's newest commit is the last one of a `LogSegment` of Delta, which is short enough."""
    version = known.version()
    try:
        newest = (commits / file_name(version)).stat()
    except FileNotFoundError:  # the table is gone, or was made again
        return False
    is_same = newest.st_mtime_ns // 1_000_000 == known.lastCommitFileModificationTimestamp()
    last = _checkpointed(commits)
    is_last = not (commits / file_name(version + 1)).exists() and last <= version
    has_hole = last < version - 1 and not (commits / file_name(version - 1)).exists()  # it was made again meanwhile
    return is_same and is_last and not has_hole and known.deltas().size() < _MOST_COMMITS


def _checkpointed(commits: Path) -> int:
    """Up to which commit there is a checkpoint: later ones may have been cleaned up, and leave a hole in the log."""
    try:
        return int(json.loads((commits / "_last_checkpoint").read_bytes())["version"])
    except (OSError, LookupError, TypeError, ValueError, OverflowError):  # Delta gets along without it
        return -1


def found(spark: SparkSession, place: str) -> DirectAppend | None:
    """What appends to the tables at a place; None where Delta's writer has to: in a newer Delta."""
    try:
        return DirectAppend(spark, place)
    except (Py4JError, PySparkException, TypeError, ValueError) as error:
        log.debug("each append is one of Delta's writer: %s", error)
        return None
