"""Tables that consumers write, by deltalake: their making, and few files of many."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from commitlake.config.locations import is_local, local_path
from commitlake.config.object_store import storage_options
from commitlake.errors import ConsumerError
from commitlake.reading.table import Options

TRANSIENT = (DeltaError, OSError, pa.ArrowException, ConsumerError)
"""What a store raises that is away for a while; also what it raises for ever when it is broken."""


def create(place: str, schema: pa.Schema, partition_by: list[str], options: Options, more: dict[str, str]) -> None:
    """Make a table where it is missing; its log is kept for a day."""
    short = {"delta.logRetentionDuration": "interval 1 day", "delta.deletedFileRetentionDuration": "interval 1 hour"}
    kept = storage_options(options)
    settings = {**short, **more}
    try:
        DeltaTable.create(
            place, schema, mode="ignore", partition_by=partition_by, configuration=settings, storage_options=kept
        )
    except (DeltaError, OSError) as error:
        if not DeltaTable.is_deltatable(place, kept):  # unless another instance made it at the same moment
            msg = f"receipts: cannot make the table {place}: {error}; name a place that this process may write to"
            raise ConsumerError(msg) from error


def check_there(place: str) -> None:
    """Raise FileNotFoundError unless a table is there: deltalake would write files where a mount point is empty."""
    if is_local(place) and not (local_path(place) / "_delta_log").is_dir():
        msg = f"the table {place} is away"
        raise FileNotFoundError(msg)


def compact(table: DeltaTable) -> None:
    """Make few files of many, and remove what no version of the last hour uses.

    Another instance may do so at the same moment: then one of the two fails, and nothing is lost.
    """
    try:
        table.optimize.compact()
        table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
        table.cleanup_metadata()
    except DeltaError:
        return
