"""Where the tables are, how they are read, and how the properties and columns of one change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from commitlake.config.locations import CATALOG, is_local, local_path
from commitlake.errors import WarehouseError
from commitlake.protocol import topic_names
from commitlake.reading import damage
from commitlake.reading.markers import commit_file, parsed
from commitlake.spark.files import FileSystem
from commitlake.spark.session import is_classic
from commitlake.tables import commits, together
from commitlake.tables.creation import properties_of
from commitlake.tables.names import TableName
from commitlake.tables.schemas import TABLES
from commitlake.tables.table_errors import reading

TOPIC_PROPERTY = "commitlake.topic"  # the table property that holds a topic's name: catalogs turn it to lower case


class ExistingTables:
    """The tables of one coordinator that exist, under a directory, a URI, or in a catalog's schema.

    Methods take a `TableName` or its text: `half`, `topics/orders`.

    Args:
        spark: A session with the Delta extension.
        root: A directory or URI, or `schema:<catalog>.<schema>`.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self._in_catalog = root.startswith(CATALOG)
        self._older: dict[str | None, bool] = {}

    def holds(self, name: str) -> bool:
        """Whether the table has been created."""
        there = self.spark.catalog.tableExists if self._in_catalog else partial(DeltaTable.isDeltaTable, self.spark)
        return bool(there(self.locate(name)))

    def must_exist(self) -> None:
        """Checks that a coordinator of this version has ever run here.

        Raises:
            WarehouseError: There are no tables, or only those of an older version, or one is damaged.
        """
        self._must_be_whole()
        missing = [name for name in TABLES if not self.holds(name)]
        if len(missing) == len(TABLES):
            message = f"warehouse: there are no tables at {self.root}; give the place that the coordinator writes to"
            raise WarehouseError(message)
        if missing:
            message = (
                f"warehouse: an older version wrote {self.root}, without the tables {missing}; "
                "start the coordinator of this version there once"
            )
            raise WarehouseError(message)

    def _must_be_whole(self) -> None:
        if is_local(self.root) and not self._in_catalog:
            damage.refuse(local_path(self.root), TABLES)

    def topics(self) -> set[str]:
        """Names of all topics that have a table."""
        return self.listed_topics() or self.found_topics()

    def listed_topics(self) -> set[str]:
        """Names of the topics that `destinations` lists."""
        return {row["topic"] for row in self.rows("destinations").select("topic").collect()}

    def found_topics(self) -> set[str]:
        """Names of the topics whose tables exist; a coordinator of an older version did not list them."""
        if self._in_catalog:
            return set(self._catalog_topics())
        if not is_classic(self.spark):
            return set()  # no directory can be listed: topics of an older version appear once it was upgraded
        names = map(topic_names.from_path_name, FileSystem(self.spark, self.root).directories("topics"))
        return {topic for topic in names if self.holds(TableName.of_topic(topic))}

    def _catalog_topics(self) -> Iterable[str]:
        schema = self.root.removeprefix(CATALOG)
        for row in self.spark.sql(f"SHOW TABLES IN {schema} LIKE 'topic_*'").collect():
            name = row["tableName"]
            with suppress(AnalysisException):  # a view, or a table that is not one of Delta: not ours
                properties = properties_of(DeltaTable.forName(self.spark, f"{schema}.`{name}`"))
                yield properties.get(TOPIC_PROPERTY) or topic_names.from_path_name(name.removeprefix("topic_"))

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """Reads a table, at its newest version or the given one.

        Raises:
            NoTableError: The table does not exist. On Spark Connect Spark raises its own error when rows are read.
        """
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return self._opened(name, reader)

    def rows(self, name: str) -> DataFrame:
        """Reads a table that is used at once; not scanned if it never had a row, as mostly a third of the tables."""
        rows = self.read(name)
        return rows if self.has_grown(name) else rows.where("false")

    def stream(self, name: str, **options: str) -> DataFrame:
        """Reads appends to a table as a stream; `options` are Delta's. Updates and deletes by an owner are skipped."""
        return self._opened(name, self.spark.readStream.format("delta").options(skipChangeCommits="true", **options))

    def _opened(self, name: str, reader: DataFrameReader | DataStreamReader) -> DataFrame:
        with reading(self.locate(name), TableName(name).topic):
            place = self.locate(name)
            return reader.table(place) if self._in_catalog else reader.load(place)

    def keeps_versions(self, name: str, since: int) -> bool | None:
        """Whether a stream can begin at a version; None for a catalog's table, which is not checked."""
        if self._in_catalog:
            return None
        return commits.are_kept(self.spark, self.locate(name), since, self.version(name))

    def has_grown(self, name: str) -> bool:
        """Whether the table may have rows; it has none if its only commit created it."""
        log = self.log(name)
        if log is None or log.exists(commit_file(1)) or log.exists(commits.LAST_CHECKPOINT):
            return True
        first = log.read(commit_file(0))
        return first is None or '{"add":' in first  # a copy of a table may have all rows in its first commit

    def log(self, name: str) -> FileSystem | None:
        """A table's log; None where its files can't be read: in a catalog, and on Spark Connect."""
        is_there = not self._in_catalog and is_classic(self.spark)
        return FileSystem(self.spark, f"{self.locate(name)}/_delta_log") if is_there else None

    def must_be_of_one_moment(self) -> None:
        """Rejects a copy that was made while a coordinator ran; not checked in a catalog, or on Spark Connect.

        Raises:
            WarehouseError: a table lacks what another one says is complete.
        """
        together.check(self.log)

    def table(self, name: str) -> DeltaTable:
        """The table, for other operations than reading and appending."""
        found = DeltaTable.forName if self._in_catalog else DeltaTable.forPath
        return found(self.spark, self.locate(name))

    def property(self, name: str, key: str) -> str | None:
        """A table property, None when it is not set."""
        return properties_of(self.table(name)).get(key)

    def set_property(self, name: str, key: str, value: str) -> None:
        """Sets a table property; the change is a commit of its own.

        Raises:
            NoTableError: The table is not there.
        """
        with reading(self.locate(name), TableName(name).topic):
            self.spark.sql(f"ALTER TABLE {self._in_sql(name)} SET TBLPROPERTIES ('{key}' = '{value}')")

    def add_columns(self, name: str, columns: Iterable[str]) -> None:
        """Adds columns, each as in SQL; a column of a struct by its path."""
        self.spark.sql(f"ALTER TABLE {self._in_sql(name)} ADD COLUMNS ({', '.join(columns)})")

    def version(self, name: str) -> int:
        """Number of the newest commit."""
        return int(self._history(name, 1)[0]["version"])

    def newest_batch(self) -> int:
        """The newest complete batch; -1 when there is none."""
        found = self.read("batches").agg(F.max("batch_id").alias("last")).collect()[0]["last"]
        return -1 if found is None else int(found)

    def markers(self, name: str, limit: int = 20) -> list[dict[str, Any]]:
        """Markers of a table's last `limit` commits, newest first; commits without one are left out."""
        return [marker for row in self._history(name, limit) if (marker := parsed(row["userMetadata"]))]

    def _history(self, name: str, limit: int) -> Any:
        return self.table(name).history(limit).select("version", "userMetadata").collect()

    def locate(self, name: str) -> str:
        """Path, or quoted catalog name."""
        if self._in_catalog:
            parts = [*self.root.removeprefix(CATALOG).split("."), self._name(TableName(name))]
            return ".".join(f"`{part}`" for part in parts)
        return f"{self.root}/{self._name(TableName(name))}"

    def _name(self, table: TableName) -> str:
        if self._in_catalog:
            return table.in_catalog
        older = topic_names.older_path_name(table.topic or "")
        if older is not None and older not in self._older:
            self._older[older] = DeltaTable.isDeltaTable(self.spark, f"{self.root}/topics/{older}")
        return f"topics/{older}" if self._older.get(older) else table.path

    def _in_sql(self, name: str) -> str:
        return self.locate(name) if self._in_catalog else f"delta.`{self.locate(name)}`"
