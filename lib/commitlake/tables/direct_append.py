"""Appends by Delta's own transactions; on local tables each begins at the table's state that this JVM has in memory.

Delta's writer lists the table's whole log two or three times an append. With 500 rows it took 118 ms after 400
commits, and 156 ms after 1 200. This way it takes 78 ms, and one append in some tens lists the log. The commit is
Delta's own: its conflict check, log store, checkpoints and statistics are those of any append.
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
from commitlake.reading.markers import commit_file
from commitlake.spark.files import FileSystem
from commitlake.spark.jvm import APPENDS, java, scala
from commitlake.tables import small_files
from commitlake.tables.commits import LAST_CHECKPOINT, checkpoint_version
from commitlake.tables.creation import is_as_made
from commitlake.tables.names import CHECKPOINT_INTERVALS
from commitlake.tables.schemas import TableLayout

log = logging.getLogger(__name__)

_MOST_COMMITS = max(CHECKPOINT_INTERVALS) + 1
"""Limit of the commits since the checkpoint with which the known state begins. Only a listing of the log finds a newer
checkpoint; without one all commits since the older checkpoint would be kept, and read for the next one."""
_WRITE = "org.apache.spark.sql.delta.DeltaOperations$Write"
_REMOVE = "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate$"
"""Delta's own delete counts rows, which a commit of whole files has not looked at."""


class DirectAppend:
    """Appends to tables below a place.

    On local disks only for tables with one writer, whose other commits, such as those of maintenance, come from this
    JVM. Delta detects a conflict between two of these, as always. A commit of another process is seen, too, at the cost
    of a listing of the log. A commit that comes during this one is not seen: on local disks Delta's log stores first
    look for the file and then write it. Off local disks each append lists the log.

    Raises:
        Py4JError: the platform blocks the internal classes of Delta that this class uses.
        TypeError: this version of Delta lacks them.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._spark = spark
        # Looked up once: that took two fifths of a commit's CPU.
        self._jvm = SimpleNamespace(**{name.rpartition(".")[2]: java(spark, name) for name in APPENDS.names})
        self._write_operation = java(spark, _WRITE)
        self._none = self._jvm.Option.empty()
        self.operation(None)
        self._begun(place)

    def append(self, rows: DataFrame, table: str, marker: Mapping[str, Any] | None) -> None:
        """Appends rows, with just the columns of an existing table, in one commit; makes none if there are no rows."""
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
        """Appends rows that the driver has, as `append`; appends nothing and returns False if the table was altered.

        `check` is called between the begin of the transaction and its commit; it raises if nothing must be committed.
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
            WarehouseError: the table does not exist any more.
        """
        begun = self._begun(table)
        if begun.readVersion() < 0:
            msg = f"there is no table at {table} any more"
            raise WarehouseError(msg)
        return begun

    def _begun(self, table: str) -> Any:
        session: Any = self._spark._jsparkSession
        self._jvm.SparkSession.setActiveSession(session)  # for this thread
        found = self._jvm.DeltaLog.forTable(session, table)
        known = found.unsafeVolatileSnapshot()
        is_newest = is_local(table) and _is_newest(known.logSegment(), local_path(table) / "_delta_log")
        return found.startTransaction(self._none, self._jvm.Option.apply(known) if is_newest else self._none)

    def operation(self, marker: Mapping[str, Any] | None) -> Any:
        """The log's description of a commit: an append. Later versions of Delta have further, optional fields."""
        by = self._jvm.Option.apply(self._seq(self._jvm.List.of()))  # as Delta's writer passes it for an append
        text = self._none if marker is None else self._jvm.Option.apply(json.dumps(marker, separators=(",", ":")))
        given = [self._jvm.SaveMode.Append, by, self._none, text]
        return self._write_operation(*given, *[self._none] * (self._fields - len(given)))

    @cached_property
    def _fields(self) -> int:
        (made,) = self._jvm.Class.forName(_WRITE).getConstructors()
        return int(made.getParameterCount())

    def written(self, rows: DataFrame, table: str) -> list[dict[str, Any]]:
        """Writes the files of an append without a commit; returns Delta's `add` actions."""
        actions = self.begin(table).writeFiles(rows._jdf)
        return [json.loads(action.json())["add"] for action in self._jvm.CollectionConverters.asJava(actions)]

    def commit(self, adds: Sequence[Mapping[str, Any]], begun: Any, operation: Any) -> None:
        """Commits files in a table's directory, by the transaction `begun` on that table."""
        actions = self._jvm.ArrayList()
        for add in adds:
            actions.add(self._jvm.Action.fromJson(json.dumps({"add": add})))
        begun.commit(self._seq(actions), operation)

    def files(self, begun: Any, condition: str, most: int) -> list[Any]:
        """Delta's entries of the files that a transaction sees, for which SQL on their `path` and `stats` holds."""
        return list(begun.snapshot().allFiles().where(condition).limit(most).collectAsList())

    def remove(self, files: Sequence[Any], begun: Any) -> None:
        """Commits that files are no longer in their table, by the transaction `begun` that sees them."""
        actions = self._jvm.ArrayList()
        for file in files:
            actions.add(file.remove())
        begun.commit(self._seq(actions), scala(self._spark, _REMOVE))

    def _seq(self, items: Any) -> Any:
        return self._jvm.CollectionConverters.asScala(items).toSeq()


def _is_newest(known: Any, commits: Path) -> bool:
    """Whether a `LogSegment` of Delta ends with the table's newest commit, and is short enough."""
    version = known.version()
    try:
        newest = (commits / commit_file(version)).stat()
    except FileNotFoundError:  # the table is gone, or was created again
        return False
    is_same = newest.st_mtime_ns // 1_000_000 == known.lastCommitFileModificationTimestamp()
    last = _checkpointed(commits)
    is_last = not (commits / commit_file(version + 1)).exists() and last <= version
    has_hole = last < version - 1 and not (commits / commit_file(version - 1)).exists()  # created again meanwhile
    return is_same and is_last and not has_hole and known.deltas().size() < _MOST_COMMITS


def _checkpointed(commits: Path) -> int:
    """Version of the newest checkpoint: commits before it may be gone, so a missing one need not be the log's end."""
    try:
        return checkpoint_version((commits / LAST_CHECKPOINT).read_bytes(), otherwise=-1)
    except OSError:
        return -1


def found(spark: SparkSession, place: str) -> DirectAppend | None:
    """The `DirectAppend` for the tables at a place; None where Delta's writer must append: in a newer Delta."""
    try:
        return DirectAppend(spark, place)
    except (Py4JError, PySparkException, TypeError, ValueError) as error:
        log.debug("each append is one of Delta's writer: %s", error)
        return None
