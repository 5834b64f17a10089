"""Appends by Delta's own transactions; on local tables each begins at the table's state that this JVM has in memory.

Delta's writer lists the table's whole log two or three times an append. With 500 rows it took 118 ms after 400
commits, and 156 ms after 1 200. This way it takes 78 ms, and one append in some tens lists the log. The commit is
Delta's own: its conflict check, log store, checkpoints and statistics are those of any append.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from commitlake.config.locations import is_local, local_path
from commitlake.errors import WarehouseError
from commitlake.reading.markers import commit_file
from commitlake.spark.files import FileSystem
from commitlake.spark.frames import typed
from commitlake.spark.jvm import APPENDS, java, scala
from commitlake.spark.parallel import run_all
from commitlake.tables import small_files
from commitlake.tables.commits import LAST_CHECKPOINT, checkpoint_version
from commitlake.tables.creation import create_at_path, is_as_made
from commitlake.tables.names import CHECKPOINT_INTERVALS
from commitlake.tables.schemas import TOPIC, TableLayout
from commitlake.tables.small_files import Adds
from commitlake.tables.table_errors import explain_failure

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


_LAYOUT = TableLayout(
    StructType([StructField("digest", StringType()), *TOPIC.schema]), ("digest", *TOPIC.partition_by), TOPIC.stats
)
"""By a digest of the topic: its name may be too long for a directory once it is escaped, or mean null to Spark."""


class _Step(NamedTuple):
    """Values that an append's commits share: the rows with `topic`, and Delta's operation, which has the marker."""

    rows: DataFrame
    marker: Mapping[str, Any] | None
    operation: Any


class StagedAppend:
    """Writes files into a scratch table, moves each into the table of its topic, and lets Delta commit it there.

    One Spark job writes the files of all topics. A job for each table is slow: 2 000 rows of 100 topics took 8.2 s,
    four tables at a time, and take 1.0 s this way.

    A kill leaves files that no log names. VACUUM deletes them, or the next start does, with the scratch table.

    Only for local warehouses: elsewhere a move may be a copy, and a newer coordinator fences appends.

    Args:
        spark: the session that appends.
        direct: commits the files.
        place: a local directory for the scratch table, on the disk of the topics' tables; its content is deleted.
    """

    def __init__(self, spark: SparkSession, direct: DirectAppend, place: str) -> None:
        self._spark, self._direct, self._place = spark, direct, local_path(place)
        if self._place.exists():
            shutil.rmtree(self._place)
        create_at_path(spark, place, _LAYOUT)  # stays empty: Delta's writer takes the columns from it

    def append(self, rows: DataFrame, tables: Mapping[str, str], marker: Mapping[str, Any] | None) -> None:
        """Appends rows, in one commit for each table; if one fails, the others are there, as with separate appends.

        Raises:
            WarehouseError: a table can't be written; the others are.
        """
        own = typed(rows, TOPIC.schema, "topic")
        adds: Mapping[str, Adds] = defaultdict(list)
        for add in explain_failure(str(self._place), partial(self._write, own)):
            adds[add["partitionValues"].pop("digest")].append(add)
        step = _Step(own, marker, self._direct.operation(marker))
        topics = {hashlib.md5(topic.encode()).hexdigest(): topic for topic in tables}
        run_all(self._spark, [partial(self._told, step, topics[each], tables, adds[each]) for each in sorted(adds)])

    def _told(self, step: _Step, topic: str, tables: Mapping[str, str], adds: Adds) -> None:
        table = tables[topic]
        explain_failure(table, partial(self._commit, step, topic, table, adds))

    def _write(self, own: DataFrame) -> Adds:
        digest = F.md5(F.col("topic").cast("binary")).alias("digest")
        return self._direct.written(own.select(digest, *TOPIC.schema.names), str(self._place))

    def _commit(self, step: _Step, topic: str, table: str, adds: Adds) -> None:
        begun = self._direct.begin(table)
        if is_as_made(begun.metadata(), TOPIC):
            own = [add | {"path": quote(str(self._moved(add, local_path(table))))} for add in adds]
            self._direct.commit(own, begun, step.operation)
        else:  # Delta's writer applies constraints, defaults, and mapped or renamed columns
            for add in adds:
                self._delete(self._place / unquote(add["path"]))
            rows = step.rows.where(F.col("topic") == topic).drop("topic")
            self._direct.append(rows, table, step.marker)

    def _moved(self, add: Mapping[str, Any], table: Path) -> Path:
        staged = Path(unquote(add["path"]))
        own = Path(*staged.parts[1:])  # all but `digest=...`
        (table / own).parent.mkdir(exist_ok=True)
        shutil.move(self._place / staged, table / own)  # a table may be a mount of its own
        self._delete(self._place / staged)
        return own

    def _delete(self, staged: Path) -> None:
        """Deletes a staged file, and the checksum that Hadoop's file system keeps beside it."""
        for path in (staged, staged.with_name(f".{staged.name}.crc")):
            path.unlink(missing_ok=True)
