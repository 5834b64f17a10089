"""Tables that consumers write with deltalake: creation, appends, and compaction."""

from __future__ import annotations

import logging
import threading
from functools import cache

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from commitlake.config.locations import is_local, local_path
from commitlake.config.object_store import storage_options
from commitlake.errors import ConsumerError
from commitlake.reading.table import Options

log = logging.getLogger(__name__)

TRANSIENT = (DeltaError, OSError, pa.ArrowException, ConsumerError)
"""Errors of a store that is away for a while; a store that is broken for good raises the same."""
_COMPACT_EVERY, _MOST_FILES = 200, 10_000
"""Commits, or files of commits (one for each group), between two compactions: 10 000 files take 20 s of a core."""
_COMMIT_TRIES = 100
"""Tries of an append, which only commits of other processes can precede."""


def create(place: str, schema: pa.Schema, partition_by: list[str], options: Options, more: dict[str, str]) -> None:
    """Create a table if it is missing; its log is kept for a day, unless `more` says otherwise."""
    short = {"delta.logRetentionDuration": "interval 1 day", "delta.deletedFileRetentionDuration": "interval 1 hour"}
    kept = storage_options(options)
    settings = {**short, **more}
    try:
        DeltaTable.create(
            place, schema, mode="ignore", partition_by=partition_by, configuration=settings, storage_options=kept
        )
    except (DeltaError, OSError) as error:
        if not DeltaTable.is_deltatable(place, kept):  # another instance may have created it at the same moment
            msg = f"receipts: cannot make the table {place}: {error}; name a place that this process may write to"
            raise ConsumerError(msg) from error


def check_there(place: str) -> None:
    """Raise FileNotFoundError unless a local table exists: deltalake would write files into an empty mount point."""
    if is_local(place) and not (local_path(place) / "_delta_log").is_dir():
        msg = f"the table {place} is away"
        raise FileNotFoundError(msg)


def compact(table: DeltaTable) -> None:
    """Compact a table's files, and remove files that no version of the last hour uses.

    If another instance does so at the same moment, one of the two fails, and nothing is lost.
    """
    try:
        table.optimize.compact()
        table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
        table.cleanup_metadata()
    except (DeltaError, OSError) as error:
        log.info("the small files of %s stay for now: %s", table.table_uri, error)


class Appender:
    """Appends rows to a table for all groups of this process, one commit at a time.

    A hundred commits at a time would race for the next version of the log, and most would lose.
    """

    def __init__(self, place: str, options: dict[str, str] | None) -> None:
        self._place, self._options = place, options
        self._turn, self._tidying = threading.Lock(), threading.Lock()
        self._commits = self._files = 0  # since the last compaction

    def append(self, rows: pa.Table) -> None:
        """Append rows; their first column is the partition column, so each of its values makes a file."""
        again = CommitProperties(max_commit_retries=_COMMIT_TRIES)
        with self._turn:
            check_there(self._place)
            write_deltalake(self._place, rows, mode="append", storage_options=self._options, commit_properties=again)
            self._commits, self._files = self._commits + 1, self._files + len(rows[0].unique())

    def wants_tidying(self) -> bool:
        """Whether it is time for `tidy`, by the number of commits or files; True resets the count."""
        with self._turn:
            is_due = self._commits >= _COMPACT_EVERY or self._files >= _MOST_FILES
            if is_due:
                self._commits = self._files = 0
            return is_due

    def tidy(self) -> None:
        """Compact the table, which may take a minute; does nothing while another thread does it."""
        if self._tidying.acquire(blocking=False):
            try:
                compact(DeltaTable(self._place, storage_options=self._options))
            except (DeltaError, OSError) as error:
                log.info("the small files of %s stay for now: %s", self._place, error)
            finally:
                self._tidying.release()


@cache
def _appender(place: str, options: tuple[tuple[str, str], ...] | None) -> Appender:
    return Appender(place, None if options is None else dict(options))


def appender(place: str, options: Options) -> Appender:
    """This process's appender for a table."""
    kept = storage_options(options)
    return _appender(place, None if kept is None else tuple(sorted(kept.items())))
