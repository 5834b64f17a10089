"""Tables that consumers write, by deltalake: their making, and few files of many."""

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
"""What a store raises that is away for a while; also what it raises for ever when it is broken."""
_COMPACT_EVERY, _MOST_FILES = 200, 10_000
"""Commits, or files that they write, one for each group: 10 000 take 20 s of a core."""
_COMMIT_TRIES = 100
"""Of an append, which only the commits of other processes come before."""


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
    except (DeltaError, OSError) as error:
        log.info("the small files of %s stay for now: %s", table.table_uri, error)


class Appender:
    """Appends rows to a table for all of this process, one commit at a time.

    With a hundred at a time all race for the next version of the log, and most lose.
    """

    def __init__(self, place: str, options: dict[str, str] | None) -> None:
        self._place, self._options = place, options
        self._turn, self._tidying = threading.Lock(), threading.Lock()
        self._commits = self._files = 0  # since files were made few

    def append(self, rows: pa.Table) -> None:
        """Append rows, whose first column tells the files apart."""
        again = CommitProperties(max_commit_retries=_COMMIT_TRIES)
        with self._turn:
            check_there(self._place)
            write_deltalake(self._place, rows, mode="append", storage_options=self._options, commit_properties=again)
            self._commits, self._files = self._commits + 1, self._files + len(rows[0].unique())

    def wants_tidying(self) -> bool:
        """Whether there are so many files that it is time for `tidy`; that is told once."""
        with self._turn:
            is_due = self._commits >= _COMPACT_EVERY or self._files >= _MOST_FILES
            if is_due:
                self._commits = self._files = 0
            return is_due

    def tidy(self) -> None:
        """Make few files of many, which may take a minute; not where another thread does."""
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
    """What appends to a table in this process."""
    kept = storage_options(options)
    return _appender(place, None if kept is None else tuple(sorted(kept.items())))
