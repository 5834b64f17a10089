"""Iceberg metadata beside Delta's: the same Parquet files of topics' tables, for readers of Iceberg.

A run compares the files of the newest Delta version with those of the newest Iceberg snapshot, and commits what differs
in one snapshot. So it does not matter where an earlier run ended. No row is read: sizes and bounds are in Delta's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import compress
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, PrimitiveType, TimestamptzType

from commitlake.config import Config
from commitlake.config.locations import is_local
from commitlake.errors import WarehouseError
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.protocol.durations import DAY_MS, HOUR_MS
from commitlake.reading.catalog import location
from commitlake.reading.table import Snapshot

_VERSION, _TABLE = "commitlake.delta-version", "commitlake.delta-table"
"""In the summary of an Iceberg snapshot: which version of which Delta table it shows."""
_PARTITION = "queue_id"
_FOLDER = "_iceberg"
"""Delta's VACUUM leaves a directory alone whose name begins with `_`."""
_BOUNDED = IntegerType, LongType, TimestamptzType


class Followed(NamedTuple):
    """Where a run has brought an Iceberg table: to a version of Delta's, by adding and removing files."""

    version: int
    added: int
    removed: int


def follow(conf: Config, catalog: Catalog, namespace: str, topic: str) -> Followed:
    """Bring the Iceberg table of a topic to the newest version of its Delta table; it is created where it is missing.

    Raises:
        WarehouseError: the Delta table can't be read, or has what Iceberg can't read; or the Iceberg table of this name
            belongs to another one.
    """
    name = namespace, topic
    table = _loaded(catalog, name)  # first, so that what another run commits from now on is a conflict, and not undone
    delta = _plain(conf, topic)
    place = f"file://{delta.place}" if is_local(delta.place) else delta.place
    if table is None:
        table = _created(catalog, name, place, delta.schema)
    if table.location().rstrip("/") != place:
        msg = f"the Iceberg table {'.'.join(name)} is of {table.location()}, not of {place}; give another --namespace"
        raise WarehouseError(msg)
    added, removed = _commit(table, delta, place)
    _expire(table, delta, place, min(DAY_MS, conf.maintenance.topic_file_retention_ms // 2))
    return Followed(delta.delta.version(), added, removed)


def _plain(conf: Config, topic: str) -> Snapshot:
    delta = Snapshot(*location(conf, f"topics/{topic}"))
    if not delta.is_plain():
        msg = (
            f"the table at {delta.place} has deletion vectors or renamed columns, and Iceberg takes files as they are; "
            "rewrite them (REORG TABLE ... APPLY (PURGE)), or drop these table features"
        )
        raise WarehouseError(msg)
    return delta


def _loaded(catalog: Catalog, name: tuple[str, str]) -> Table | None:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _created(catalog: Catalog, name: tuple[str, str], place: str, schema: pa.Schema) -> Table:
    properties = {
        TableProperties.WRITE_METADATA_PATH: f"{place}/{_FOLDER}/{uuid4()}",  # one made in another catalog has its own
        "gc.enabled": "false",  # Iceberg's own clean-up would delete files of Delta
        TableProperties.COMMIT_NUM_RETRIES: "0",  # a repeated append would add its files twice
        TableProperties.MANIFEST_MERGE_ENABLED: "true",
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",  # each names all snapshots of a day: 1 MB for 1 440
    }
    if not catalog.namespace_exists(name[:-1]):
        catalog.create_namespace(name[:-1])
    with catalog.create_table_transaction(name, schema, place, properties=properties) as created:
        with created.update_spec() as spec:  # the files lack the column: readers take its value from the metadata
            spec.add_identity(_PARTITION)
        mapping = created.table_metadata.schema().name_mapping.model_dump_json()  # the files have no ids of fields
        created.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    return catalog.load_table(name)


def _commit(table: Table, delta: Snapshot, place: str) -> tuple[int, int]:
    """Commit the columns and files that differ, in one commit; return how many files came and went."""
    current = table.current_snapshot()
    reached = {_VERSION: str(delta.delta.version()), _TABLE: delta.id}
    shown: Mapping[str, Any] = (current and current.summary) or {}
    if all(shown.get(name) == value for name, value in reached.items()):
        return 0, 0
    files, there = delta.files(), _files(table, current)
    paths = [f"{place}/{unquote(path)}" for path in files["path"].to_pylist()]
    is_new = [path not in there for path in paths]
    added = [*compress(paths, is_new)]
    removed = [there[path] for path in there.keys() - {*paths}]
    with table.transaction() as transaction:
        with transaction.update_schema() as columns:
            columns.union_by_name(delta.schema)
        if added or removed:
            schema, change = transaction.table_metadata.schema(), transaction.update_snapshot(reached)
            with change.overwrite() if removed else change.merge_append() as snapshot:
                for path, row in zip(added, files.filter(pa.array(is_new, pa.bool_())).to_pylist(), strict=True):
                    snapshot.append_data_file(_data_file(path, row, schema, delta))
                for file in removed:
                    snapshot.delete_data_file(file)
    return len(added), len(removed)


def _files(table: Table, snapshot: IcebergSnapshot | None) -> dict[str, DataFile]:
    """The data files of a snapshot, by path."""
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def _data_file(path: str, row: Mapping[str, Any], schema: Schema, delta: Snapshot) -> DataFile:
    """A file as Iceberg's manifests have it, by a row of `Snapshot.files`."""
    kinds = {
        each.field_id: (each.name, kind) for each in schema.fields if isinstance(kind := each.field_type, _BOUNDED)
    }
    nulls = {number: row.get(f"null_count.{name}") for number, (name, _) in kinds.items()}
    nulls = {number: count for number, count in nulls.items() if count is not None}
    rows = row["num_records"]
    if rows is None:  # another program has written it, without statistics
        rows = pq.read_metadata(delta.open(row["path"])).num_rows
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(row[f"partition.{_PARTITION}"]),
        record_count=rows,
        file_size_in_bytes=row["size_bytes"],
        value_counts=dict.fromkeys(nulls, rows),
        null_value_counts=nulls,
        lower_bounds=_bounds(kinds, row, "min", timedelta(0)),
        upper_bounds=_bounds(kinds, row, "max", timedelta(milliseconds=1)),  # Delta's writer drops what is below 1 ms
    )


def _bounds(
    kinds: Mapping[int, tuple[str, PrimitiveType]], row: Mapping[str, Any], which: str, later: timedelta
) -> dict[int, bytes]:
    """Bounds of columns, by the number of the field; `later` is added to times."""
    return {
        number: to_bytes(kind, value + later if isinstance(value, datetime) else value)
        for number, (name, kind) in kinds.items()
        if (value := row.get(f"{which}.{name}")) is not None
    }


def _expire(table: Table, delta: Snapshot, place: str, age_ms: int) -> None:
    """Forget snapshots of an age, long before VACUUM deletes files that they name, and delete their metadata.

    Not at each run, which would be as many commits again.
    """
    limit_ms = now_ms() - age_ms
    named = {ref.snapshot_id for ref in table.refs().values()}  # the current one, and those with a tag
    if all(each.snapshot_id in named or each.timestamp_ms >= limit_ms - age_ms // 24 for each in table.snapshots()):
        return
    table.maintenance.expire_snapshots().older_than(as_datetime(limit_ms)).commit()
    _delete_unnamed(table, delta, place)


def _delete_unnamed(table: Table, delta: Snapshot, place: str) -> None:
    """Delete old metadata that the table does not name: of forgotten snapshots, and of runs that were killed.

    A run beside this one has young metadata, or loses: its snapshot is not based on the one that this run has reached.
    """
    folder = table.properties.get(TableProperties.WRITE_METADATA_PATH, "").removeprefix(f"{place}/")
    if not folder.startswith(f"{_FOLDER}/"):
        return  # one that other tables have too
    before_ms, kept = now_ms() - DAY_MS, sorted(table.snapshots(), key=lambda each: each.timestamp_ms)
    # A file that one snapshot lacks is in none of the later ones.
    refs = {ref.snapshot_id for ref in table.refs().values()}  # they may stand on other lines of history
    near = kept[: 1 + sum(each.timestamp_ms < before_ms for each in kept)]
    near += [each for each in kept if each.snapshot_id in refs]
    named = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    named |= {each.manifest_list for each in kept}
    named |= {each.statistics_path for each in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    named |= {one.manifest_path for each in near for one in each.manifests(table.io)}
    names = {path.rpartition("/")[2] for path in named}
    for name, written_ms in delta.names(folder):
        if name not in names and written_ms < before_ms - HOUR_MS:  # an hour for clocks that differ
            with suppress(OSError):  # it is gone, or stays for nobody
                table.io.delete(f"{place}/{folder}/{name}")
