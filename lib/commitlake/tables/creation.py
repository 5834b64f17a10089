"""The creation of tables, by path or in a catalog, and the columns that a table of an older version lacks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from commitlake.config import databricks
from commitlake.errors import WarehouseError
from commitlake.spark.files import FileSystem
from commitlake.tables.schemas import APPEND_ONLY, FILE_RETENTION, TableLayout

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_BEGUN = ("_staged_commits", "_commits", "_sidecars")
"""Directories that Delta makes in a log before its first commit; its older versions make the second one."""

_FREE = (APPEND_ONLY, "delta.checkpointInterval", "delta.logRetentionDuration", FILE_RETENTION)
"""Properties that do not change the files of an append."""


def create_at_path(spark: SparkSession, path: str, table: TableLayout) -> DeltaTable:
    """Creates a table at a path, unless it is there; returns it as it is there."""
    if databricks.volume(path):
        return _create_by_write(spark, path, table)
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(table.schema).comment(table.comment)
    if table.partition_by:
        builder = builder.partitionedBy(*table.partition_by)
    for key, value in table.properties().items():
        builder = builder.property(key, value)
    return _create(
        spark, builder.execute, lambda error: path if error.getCondition() == "DELTA_TABLE_NOT_FOUND" else None
    )


def _create_by_write(spark: SparkSession, path: str, table: TableLayout) -> DeltaTable:
    """The same by a write of no rows: a volume may hold a table's files, but can't be the location of a table."""
    writer = spark.createDataFrame([], table.schema).write.format("delta").mode("append")
    writer.options(**table.properties()).partitionBy(*table.partition_by).save(path)
    return DeltaTable.forPath(spark, path)


def _create(spark: SparkSession, create: Callable[[], _T], cut_short: Callable[[AnalysisException], str | None]) -> _T:
    """Creates a table; retries once if `cut_short` finds in the error the place of a creation that was cut short."""
    try:
        return create()
    except AnalysisException as error:
        place = cut_short(error)
        if place is None:
            raise
        log.warning("the creation of the table at %s was cut short, and is done again", place)
        _clear_log(FileSystem(spark, f"{place}/_delta_log"))
        return create()


def _clear_log(begun: FileSystem) -> None:
    """Deletes a log that a kill or a full disk left without a commit: Delta neither reads it nor creates a table there.

    Deletes only what Delta itself has made, and no directory with content: another coordinator may commit just now.
    """
    for name in begun.names(""):
        if name in _BEGUN or name.startswith(".") or name.endswith(".crc"):
            begun.delete_alone(name)
    begun.delete_alone("")


def create_in_catalog(spark: SparkSession, name: str, table: TableLayout, more: Mapping[str, str]) -> DeltaTable:
    """Creates a table by its quoted catalog name, unless it is there; in SQL, as Delta's builder takes no catalog.

    Returns it as it is there.
    """
    fields = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()} COMMENT {_text(field.metadata.get('comment', ''))}"
        for field in table.schema
    )
    partitions = f"PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in {**table.properties(), **more}.items())
    tail = f"{partitions} COMMENT {_text(table.comment)} TBLPROPERTIES ({properties})"
    create = f"CREATE TABLE IF NOT EXISTS {name} ({fields}) USING delta {tail}"

    def cut_short(error: AnalysisException) -> str | None:
        if error.getCondition() != "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION":
            return None
        place = (error.getMessageParameters() or {}).get("tableLocation")
        return None if place is None or DeltaTable.isDeltaTable(spark, place) else place  # a whole table is another's

    _create(spark, partial(spark.sql, create), cut_short)
    return DeltaTable.forName(spark, name)


def add_missing_columns(spark: SparkSession, sql_name: str, found: list[str], table: TableLayout) -> None:
    """Brings a table of an older version to the columns of this one.

    Raises:
        WarehouseError: its columns are not those of an older version.
    """
    missing = _added_since(found, table)
    if missing:
        log.warning("the table %s is of an older version: adding the columns %s", sql_name, ", ".join(missing))
        spark.sql(f"ALTER TABLE {sql_name} ADD COLUMNS ({', '.join(missing)})")
    elif found != table.columns:
        message = (
            f"the table {sql_name} has the columns {found}; this version of CommitLake writes {table.columns}; "
            "start the newer version that has written it, or set `warehouse` to a place of its own"
        )
        raise WarehouseError(message)


def lacking(found: StructType, table: TableLayout, since: Collection[str]) -> list[str]:
    """The columns of `since` that a topic's table lacks, as SQL adds them.

    Raises:
        WarehouseError: the table's owner has given it a column of that name and another type.
    """
    there = {field.name.lower(): field.dataType for field in found}
    for name in since:
        own, wanted = there.get(name), table.schema[name].dataType
        if own is not None and own != wanted:
            msg = f"the column {name} is {own.simpleString()}, and {wanted.simpleString()} in a topic; rename yours"
            raise WarehouseError(msg)
    return _added_since([name for name in table.columns if name in there or name not in since], table)


def _added_since(found: list[str], table: TableLayout) -> list[str]:
    """Missing columns that later versions added, as SQL adds them; none for a table of another application."""
    if found != [name for name in table.columns if name in found]:
        return []
    return [
        f"{field.name} {field.dataType.simpleString()} AFTER {last.name}"
        for last, field in pairwise(table.schema.fields)
        if field.name not in found
    ]


def is_as_made(metadata: Any, table: TableLayout) -> bool:
    """Whether plain files with a layout's columns are what Delta's writer would write to a table.

    If not, the owner has added constraints, defaults, generated or mapped columns, or other partitions. Or the owner
    has set a property that Delta's writer obeys, such as those for compaction or a change feed.
    """
    found = json.loads(metadata.json())["metaData"]
    return (
        _heeded(found["configuration"]) == _heeded(table.properties())
        and found["partitionColumns"] == list(table.partition_by)
        and _by_name(found["schemaString"]) == _by_name(table.schema.json())
    )


def _heeded(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that Delta's writer obeys; unmapped columns are the default, so that property may be absent."""
    own = {name: value for name, value in properties.items() if name.startswith("delta.") and name not in _FREE}
    return {"delta.columnMapping.mode": "none", **own}


def _by_name(schema: str) -> list[dict[str, Any]]:
    """The columns of a schema, sorted by name, with all of Delta's metadata but comments."""
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    for field in fields:
        field["metadata"].pop("comment", None)
    return sorted(fields, key=lambda field: str(field["name"]))


def _text(text: str) -> str:
    """A literal of SQL."""
    return json.dumps(text, ensure_ascii=False)


def properties_of(table: DeltaTable) -> dict[str, str]:
    """A table's properties. `SHOW TBLPROPERTIES` hides each value that has "url", "token" or "secret" in it.

    The 22 random letters of one of Kafka's ids have "url" in them once in 1 600 times.
    """
    return dict(table.detail().select("properties").collect()[0][0])
