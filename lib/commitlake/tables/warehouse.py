"""Where the tables are, and the few ways in which they are created, read and appended to."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.errors import WarehouseError, root_reason
from commitlake.protocol.topic_names import from_path_name, path_name
from commitlake.tables.append_guard import Guard
from commitlake.tables.schemas import TABLES, TOPIC, Table

log = logging.getLogger(__name__)

_CATALOG = "schema:"
_NARROW_CATALOGS = ("spark_catalog", "hive_metastore")
"""Hive's names have letters, digits and underscores only."""
_TOPIC = "commitlake.topic"  # the table property that holds a topic's name: catalogs make capital letters small


class Warehouse:
    """The tables of one coordinator, under a directory, a URI, or in a catalog's schema.

    Landing and coordination both write topic tables: both use one `Warehouse`, whose lock keeps
    two threads from creating the same table.

    Args:
        spark: A session with the Delta extension.
        root: A directory or URI, or `schema:<catalog>.<schema>`.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self._in_catalog = root.startswith(_CATALOG)
        self._lock = threading.Lock()
        self._known_topics: set[str] = set()
        self.guard = Guard()

    def create(self) -> None:
        """Create the fixed tables that are missing, and add the columns that an older version did not have.

        Raises:
            WarehouseError: A table there has other columns than this version writes.
        """
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._create_fixed, TABLES))

    def must_exist(self) -> None:
        """Check that a coordinator of this version has ever run here.

        Raises:
            WarehouseError: There are no tables, or only those of an older version.
        """
        there = self.spark.catalog.tableExists if self._in_catalog else partial(DeltaTable.isDeltaTable, self.spark)
        missing = [name for name in TABLES if not there(self.locate(name))]
        if len(missing) == len(TABLES):
            message = f"warehouse: there are no tables at {self.root}; give the place that the coordinator writes to"
            raise WarehouseError(message)
        if missing:
            message = (
                f"warehouse: an older version wrote {self.root}, without the tables {missing}; "
                "start the coordinator of this version there once"
            )
            raise WarehouseError(message)

    def topics(self) -> set[str]:
        """Names of all topics that have a table."""
        return set(self._catalog_topics() if self._in_catalog else map(from_path_name, self._directory_topics()))

    def may_hold(self, topic: str) -> bool:
        """Whether the topic's name can be part of a table's name here."""
        if not self._in_catalog:
            return True
        catalog, dot, _ = self.root.removeprefix(_CATALOG).partition(".")
        is_narrow = not dot or catalog in _NARROW_CATALOGS
        return not is_narrow or re.fullmatch(r"[A-Za-z0-9_]+", topic) is not None

    def ensure_topic(self, topic: str) -> None:
        """Create the topic's table when it is missing; cheap when it is known."""
        with self._lock:
            if topic not in self._known_topics:
                self._create(self.locate_topic(topic), TOPIC, **({_TOPIC: topic} if self._in_catalog else {}))
                self._known_topics.add(topic)

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """Read a fixed table, at its newest version or the given one."""
        return self._read(self.locate(name), version)

    def read_topic(self, topic: str, version: int | None = None) -> DataFrame:
        """Read a topic's table, at its newest version or the given one."""
        return self._read(self.locate_topic(topic), version)

    def stream(self, name: str, starting_version: int, **options: str) -> DataFrame:
        """Stream a fixed table's appends from the commit `starting_version` on (inclusive).

        Delta refuses to start from a commit that does not exist yet: `version(name) + 1` needs an append first.
        """
        reader = self.spark.readStream.format("delta").options(**options)
        reader = reader.option("startingVersion", str(starting_version))
        return reader.table(self.locate(name)) if self._in_catalog else reader.load(self.locate(name))

    def append(self, df: DataFrame, name: str, marker: Mapping[str, Any] | None = None) -> None:
        """Append rows to a fixed table in one commit.

        Args:
            df: Has at least the table's columns; more are ignored, order and width are put right.
            name: A key of `TABLES`.
            marker: Stored as JSON in the commit's userMetadata; see `markers`.
        """
        self._append(df, self.locate(name), TABLES[name], marker)

    def append_topic(self, df: DataFrame, topic: str, marker: Mapping[str, Any] | None = None) -> None:
        """Append rows to a topic's table in one commit; the table must exist (`ensure_topic`)."""
        self._append(df, self.locate_topic(topic), TOPIC, marker)

    def table(self, name: str) -> DeltaTable:
        """A fixed table, for what is not reading or appending."""
        return self._table(self.locate(name))

    def topic_table(self, topic: str) -> DeltaTable:
        """A topic's table, for what is not reading or appending."""
        return self._table(self.locate_topic(topic))

    def set_property(self, name: str, key: str, value: str) -> None:
        """Set a table property of a fixed table; the change is a commit of its own."""
        self._set_property(self.locate(name), key, value)

    def set_topic_property(self, topic: str, key: str, value: str) -> None:
        """Set a table property of a topic's table; the change is a commit of its own."""
        self._set_property(self.locate_topic(topic), key, value)

    def property(self, name: str, key: str) -> str | None:
        """A table property of a fixed table, None when it is not set."""
        detail = self.table(name).detail().select("properties").collect()[0]
        value: str | None = detail["properties"].get(key)
        return value

    def version(self, name: str) -> int:
        """Number of the newest commit of a fixed table."""
        return int(self._history(self.locate(name), 1)[0]["version"])

    def newest_batch(self, name: str = "batches") -> int:
        """Highest batch_id of a fixed table, of `batches` the newest complete one; -1 when there is none."""
        found = self.read(name).agg(F.max("batch_id").alias("last")).collect()[0]["last"]
        return -1 if found is None else int(found)

    def markers(self, name: str, limit: int = 20) -> list[dict[str, Any]]:
        """Markers of a fixed table's last `limit` commits, newest first; commits without one are left out."""
        return self._markers(self.locate(name), limit)

    def topic_markers(self, topic: str, limit: int = 20) -> list[dict[str, Any]]:
        """Markers of a topic table's last `limit` commits, newest first; commits without one are left out."""
        return self._markers(self.locate_topic(topic), limit)

    def locate(self, name: str) -> str:
        """Path, or quoted catalog name, of a fixed table."""
        return self._place(name, name)

    def locate_topic(self, topic: str) -> str:
        """Path, or quoted catalog name, of a topic's table."""
        escaped = path_name(topic)
        return self._place(f"topics/{escaped}", f"topic_{escaped}")

    def _place(self, path: str, table: str) -> str:
        if self._in_catalog:
            return ".".join(f"`{part}`" for part in [*self.root.removeprefix(_CATALOG).split("."), table])
        return f"{self.root}/{path}"

    def _create(self, place: str, table: Table, **properties: str) -> None:
        if self._in_catalog:
            self._create_in_catalog(place, table, table.properties() | properties)
            return
        builder = DeltaTable.createIfNotExists(self.spark).location(place).addColumns(table.schema)
        if table.partition_by:
            builder = builder.partitionedBy(*table.partition_by)
        for key, value in table.properties().items():
            builder = builder.property(key, value)
        builder.execute()

    def _create_in_catalog(self, place: str, table: Table, more: Mapping[str, str]) -> None:
        """Delta's builder takes no catalog in a name, SQL does."""
        fields = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in table.schema)
        partitions = f"PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in more.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {place} ({fields}) USING delta {partitions} TBLPROPERTIES ({properties})"
        )

    def _create_fixed(self, name: str) -> None:
        place, table = self.locate(name), TABLES[name]
        self._create(place, table)
        found = self.read(name).columns
        if missing := _added_since(found, table):
            log.warning("the table at %s is of an older version: adding the columns %s", place, ", ".join(missing))
            self.spark.sql(f"ALTER TABLE {self._in_sql(place)} ADD COLUMNS ({', '.join(missing)})")
            found = self.read(name).columns
        if found != table.columns:
            message = (
                f"the table at {place} has the columns {found}; this version of CommitLake writes {table.columns}; "
                "set `warehouse` to a place of its own, or migrate the table"
            )
            raise WarehouseError(message)

    def _set_property(self, place: str, key: str, value: str) -> None:
        self.spark.sql(f"ALTER TABLE {self._in_sql(place)} SET TBLPROPERTIES ('{key}' = '{value}')")

    def _in_sql(self, place: str) -> str:
        return place if self._in_catalog else f"delta.`{place}`"

    def _read(self, place: str, version: int | None) -> DataFrame:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(place) if self._in_catalog else reader.load(place)

    def _append(self, df: DataFrame, place: str, table: Table, marker: Mapping[str, Any] | None) -> None:
        rows = df.select(*[F.col(field.name).cast(field.dataType) for field in table.schema])
        writer = self.guard.rows(rows).write.format("delta").mode("append")
        if marker is not None:
            writer = writer.option("userMetadata", json.dumps(marker, separators=(",", ":")))
        try:
            writer.saveAsTable(place) if self._in_catalog else writer.save(place)
        except Exception as error:
            message = (
                f"cannot write to the table at {place}: {root_reason(error)}; mend the cause and start again: nothing "
                "is lost, the next start goes on from the tables"
            )
            raise WarehouseError(message) from error

    def _table(self, place: str) -> DeltaTable:
        found = DeltaTable.forName if self._in_catalog else DeltaTable.forPath
        return found(self.spark, place)

    def _history(self, place: str, limit: int) -> Any:
        return self._table(place).history(limit).select("version", "userMetadata").collect()

    def _markers(self, place: str, limit: int) -> list[dict[str, Any]]:
        parsed = (_parse_marker(row["userMetadata"]) for row in self._history(place, limit))
        return [marker for marker in parsed if marker is not None]

    def _directory_topics(self) -> Iterable[str]:
        jvm: Any = self.spark.sparkContext._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self.root}/topics")
        files = path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())
        if not files.exists(path):
            return []
        return [status.getPath().getName() for status in files.listStatus(path) if status.isDirectory()]

    def _catalog_topics(self) -> Iterable[str]:
        schema = self.root.removeprefix(_CATALOG)
        for row in self.spark.sql(f"SHOW TABLES IN {schema} LIKE 'topic_*'").collect():
            kept = self.spark.sql(f"SHOW TBLPROPERTIES {schema}.`{row['tableName']}`").collect()
            properties = {entry["key"]: entry["value"] for entry in kept}
            yield properties.get(_TOPIC) or from_path_name(row["tableName"].removeprefix("topic_"))


def _added_since(found: list[str], table: Table) -> list[str]:
    """Columns that came with later versions, as SQL adds them; none in a table of somebody else."""
    if found != [name for name in table.columns if name in found]:
        return []
    return [
        f"{field.name} {field.dataType.simpleString()} AFTER {last.name}"
        for last, field in pairwise(table.schema.fields)
        if field.name not in found
    ]


def _parse_marker(text: str | None) -> dict[str, Any] | None:
    """Read a commit's userMetadata; other tools may have put anything there."""
    try:
        marker = json.loads(text or "null")
    except ValueError:
        return None
    return marker if isinstance(marker, dict) else None
