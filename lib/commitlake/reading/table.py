"""One Delta table, read by deltalake: its snapshot, the snapshot's files with statistics, and rows of some files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote
from weakref import WeakValueDictionary

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from commitlake.config.locations import CATALOG, check_readable, is_local, local_path
from commitlake.config.object_store import storage_options
from commitlake.errors import NoTableError, WarehouseError
from commitlake.reading import damage, features
from commitlake.reading.forks import refuse_fork
from commitlake.reading.markers import commit_file

if TYPE_CHECKING:
    import pyarrow.dataset as pads
    import pyarrow.fs

    from commitlake.reading.parquet import ParquetRows

NO_SPARK = (
    "without Spark a warehouse may be a local directory, or a URI of s3, abfs(s) or gs; read others with Spark: "
    "commitlake.read_topic"
)
_HOW = (
    "name the place of its tables, catalog.location, or Unity Catalog's REST API, catalog.url; or read it with Spark: "
    "commitlake.read_topic"
)
_PARTITION = "partition."
_FIRST_COMMIT = f"_delta_log/{commit_file(0)}"
Options = Mapping[str, str] | Callable[[], Mapping[str, str]] | None
LATELY_S = 1.0
"""A poll of the log that began earlier is too old for every caller."""
_SHARED: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def refuse_for_spark(place: str) -> None:
    """Refuse what only Spark can read.

    Raises:
        WarehouseError: deltalake can't read what is there.
    """
    if place.startswith((CATALOG, "hdfs:", "dbfs:", "viewfs:")):
        msg = f"warehouse: {place} can't be read here; {_HOW if place.startswith(CATALOG) else NO_SPARK}"
        raise WarehouseError(msg)


def is_table(place: str) -> bool:
    """Whether there is a table, as far as that can be told."""
    refuse_fork()
    try:
        return bool(DeltaTable.is_deltatable(place, storage_options(None)))
    except (DeltaError, OSError):  # reported when the other place is opened
        return False


def folders(place: str) -> list[str]:
    """Names of the files and directories in a directory; none where it does not exist.

    Raises:
        WarehouseError: deltalake can't read what is there.
    """
    refuse_for_spark(place)
    from pyarrow import fs

    found = filesystem(place).get_file_info(fs.FileSelector("", allow_not_found=True))
    return sorted(info.base_name for info in found)


def filesystem(place: str, options: Options = None) -> pyarrow.fs.FileSystem:
    """A table's directory as a file system of pyarrow.

    A local one is Arrow's own. A file system in Python may end the process with SIGABRT as the process ends, if a
    thread of Arrow's is the last to release it: one of ten runs of `commitlake unfinished`.
    """
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs

    if is_local(place):
        return fs.SubTreeFileSystem(str(local_path(place).absolute()), fs.LocalFileSystem())
    return fs.PyFileSystem(DeltaStorageHandler(place, storage_options(options)))


def delta_table(place: str, options: Options = None) -> DeltaTable:
    """A table at its newest version.

    Raises:
        NoTableError: there is none.
        WarehouseError: it can't be read, or is damaged.
    """
    refuse_fork()
    try:
        check_readable(place)  # where it is not, deltalake panics, which is no Exception
        table = DeltaTable(place, storage_options=storage_options(options))
    except ValueError as error:
        msg = f"the table at {place} is not read; allowed is {error}"
        raise WarehouseError(msg) from None
    except (DeltaError, OSError) as error:
        wrong = damage.of_log(local_path(place)) if is_local(place) else ""
        if wrong:
            raise WarehouseError(damage.told(local_path(place), wrong)) from error
        if isinstance(error, TableNotFoundError):
            msg = f"there is no table at {place}; check the place, or wait for its first row"
            raise NoTableError(msg) from None
        reason = damage.reason(error)
        msg = f"cannot read the table at {place}: {reason}; {damage.remedy(reason, NO_SPARK)}"
        raise WarehouseError(msg) from error
    if is_local(place) and damage.is_empty(local_path(place), table.version()):
        wrong = damage.of_log(local_path(place))  # checked again: a process may write to it just now
        if wrong:
            raise WarehouseError(damage.told(local_path(place), wrong))
    return table


def file_time_ms(place: str, name: str, options: Options = None) -> int | None:
    """When a file below a place was written, ms since epoch, UTC, by the store's clock; None where there is none.

    Raises:
        WarehouseError: the place can't be read.
    """
    try:
        found = filesystem(place, options).get_file_info(name)
    except (DeltaError, OSError) as error:
        msg = f"cannot read {place}: {error}; {NO_SPARK}"
        raise WarehouseError(msg) from error
    return None if found.mtime_ns is None else int(found.mtime_ns) // 1_000_000


@cache
def _making(key: Hashable) -> threading.Lock:
    """The lock that a thread holds while it makes a shared snapshot."""
    return threading.Lock()


class Snapshot:
    """A snapshot of a table, which `refresh` renews.

    Args:
        place: A local directory or a URI.
        options: deltalake's `storage_options`, or what makes them each time anew.

    Attributes:
        id: The table's id; a table that is created at the same place later has another.
        schema: Its columns.
        physical: Names in its files, by name, of columns that have another one there.
        partitions: Columns by which it is partitioned.

    Raises:
        NoTableError: There is no table.
        WarehouseError: It can't be read, or has a feature that is not known.
    """

    def __init__(self, place: str, options: Options = None) -> None:
        self.place = str(local_path(place)) if is_local(place) else place
        self._options, self._used = options, storage_options(options)
        begun_s = time.monotonic()
        self.delta = delta_table(self.place, self._options)
        features.refuse_unknown(self.delta, self.place)
        self.id = str(self.delta.metadata().id)
        self.schema, self.physical = features.columns(self.delta, self.place)
        self.partitions = tuple(self.delta.metadata().partition_columns)
        self._version = self.delta.version()
        self._actions: pa.Table | None = None
        self._deleted: Mapping[str, features.Numbers] | None = None
        self._lock, self._is_looking = threading.RLock(), False
        self._begun_s, self._took_s = begun_s, time.monotonic() - begun_s

    @classmethod
    def shared(cls, place: str, options: Options = None) -> Self:
        """This process's shared snapshot of a table, at its newest version; it is freed when nobody holds it.

        Raises:
            NoTableError: There is no table.
            WarehouseError: It can't be read, or has a feature that is not known.
        """
        refuse_fork()
        key = cls, place, options if callable(options) else tuple(sorted((options or {}).items()))
        with _making(key):
            found: Self | None = _SHARED.get(key)
            if found is None:
                found = _SHARED[key] = cls(place, options)
                return found
        with suppress(WarehouseError, DeltaError, OSError):  # opened again below, which works or raises
            found.refresh()
            if found._begins_the_log() and features.columns(found.delta, place)[0] == found.schema:
                return found
        found = _SHARED[key] = cls(place, options)
        return found

    def is_fresh(self) -> bool:
        """Whether a poll is under way, or began less than ten times its duration ago, and less than `LATELY_S`.

        So polls take a tenth of the time, however many callers ask.
        """
        return self._is_looking or self._begun_s > time.monotonic() - min(LATELY_S, 10 * self._took_s)

    def refresh(self, after_s: float | None = None) -> bool:
        """Poll the log and go to the newest version; return whether it is another one. One caller polls for all.

        Args:
            after_s: a poll that began after this, by the monotonic clock, is new enough; None for now.

        Raises:
            WarehouseError: The table was deleted and made again.
        """
        after_s = time.monotonic() if after_s is None else after_s
        with self._lock:
            if self._begun_s > after_s:
                return False
            begun_s, self._is_looking = time.monotonic(), True
            try:
                is_new = self._refresh()
            finally:
                self._is_looking = False
            self._begun_s, self._took_s = begun_s, time.monotonic() - begun_s
            return is_new

    def credentials(self) -> object:
        """The options that open files now: another object once credentials were renewed; open files keep the former."""
        if storage_options(self._options) != self._used:
            self.refresh()
        return self._used

    def _refresh(self) -> bool:
        try:
            if (now := storage_options(self._options)) == self._used:
                self.delta.update_incremental()
            else:
                self.delta, self._used = DeltaTable(self.place, storage_options=now), now
        except DeltaError:  # for example, the log is shorter now
            self._refuse_another()
            raise
        if self.delta.version() == self._version:
            return False
        if not self._begins_the_log():
            self._refuse_another()
        features.refuse_unknown(self.delta, self.place)
        self._version, self._actions, self._deleted = self.delta.version(), None, None
        return True

    def _begins_the_log(self) -> bool:
        """Whether the first commit names this table; deltalake applies later commits, whichever table's they are."""
        try:
            with self.open(_FIRST_COMMIT) as commit:
                return self.id.encode() in commit.read()
        except FileNotFoundError:  # cleanup deletes the begin of a long log
            return True

    def _refuse_another(self) -> None:
        newest = DeltaTable(self.place, storage_options=storage_options(self._options))
        if str(newest.metadata().id) != self.id:
            msg = f"the table at {self.place} was deleted and made again while it was read; start again"
            raise WarehouseError(msg)

    def files(self) -> pa.Table:
        """The files of the snapshot.

        `path`, `size_bytes`, `modification_time`, `num_records`, `partition.<column>`, and statistics such as
        `min.batch_id` where the table has them.
        """
        if (known := self._actions) is not None:
            return known
        with self._lock:
            if self._actions is None:
                actions = self.delta.get_add_actions(flatten=True)  # `pa.table` of it would load pandas, for 0.3 s
                found = pa.RecordBatchReader.from_stream(actions).read_all()
                features.refuse_clone(found["path"], self.place)
                self._actions = features.by_logical_names(found, self.physical)
            return self._actions

    def deleted(self) -> Mapping[str, features.Numbers]:
        """Numbers of the rows that deletion vectors take out of files, by the file's `path`."""
        if (known := self._deleted) is not None:
            return known
        with self._lock:
            if self._deleted is None:
                self._deleted = features.deleted(self.delta, self.files()["path"].to_pylist)
            return self._deleted

    def is_plain(self) -> bool:
        """Whether its rows are all rows of its files, under the names that columns have there."""
        return not self.physical and not self.deleted()

    def rows(
        self,
        path: str,
        constants: Mapping[str, Any],
        large: str = "",
        deleted: Mapping[str, features.Numbers] | None = None,
    ) -> ParquetRows:
        """Rows of one of the files.

        Args:
            path: of the file, as in `files()`.
            constants: values of the columns by which the table is partitioned.
            large: a binary column whose values may be large.
            deleted: `deleted()` of an earlier version, if a `refresh` may have come since; None for the present one.
        """
        from commitlake.reading.parquet import ParquetRows

        gone = (self.deleted() if deleted is None else deleted).get(path)
        return ParquetRows(self.open(path), self.schema, constants, large, gone, self.physical)

    def column_names(self) -> list[str]:
        """Names of columns at this version; `schema` stays that of the first version, which files of all others fit."""
        return [field.name for field in self.delta.schema().fields]

    def log_length(self) -> int:
        """Number of files in its log."""
        return len(self.names("_delta_log"))

    def names(self, folder: str) -> list[tuple[str, int]]:
        """Names of the files in a folder of its directory, each with the time when it was written, ms since epoch."""
        from pyarrow import fs

        found = filesystem(self.place, self._options).get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [(each.base_name, each.mtime_ns // 1_000_000) for each in found if each.type == fs.FileType.File]

    def dataset(self, files: pa.Table | None = None) -> pads.Dataset:
        """Rows of some of the files.

        For 2 000 files `DeltaTable.to_pyarrow_dataset` takes 3 s, since it turns all statistics into expressions; this
        method takes 40 ms.

        Args:
            files: rows of `files()`; None for all.
        """
        import pyarrow.dataset as pads  # imports pandas, half a second that most questions need not wait

        here = filesystem(self.place, self._options)
        files = self.files() if files is None else files
        columns = [files[f"{_PARTITION}{name}"].to_pylist() for name in self.partitions]
        kind = pads.ParquetFileFormat()
        fragments = [
            kind.make_fragment(unquote(path), here, _all_equal(self.partitions, values))
            for path, *values in zip(files["path"].to_pylist(), *columns, strict=True)
        ]
        return pads.FileSystemDataset(fragments, self.schema, kind, here)

    def open(self, path: str) -> pyarrow.NativeFile:
        """One of the files, by its `path` in `files()`."""
        return filesystem(self.place, self._options).open_input_file(unquote(path))


class Stream:
    """Rows of a table that is not plain (`is_plain`), as an Arrow stream that can be read any number of times.

    The stream has only `columns`, in any case, unless that is None.
    """

    def __init__(self, table: Snapshot, columns: Collection[str] | None = None) -> None:
        self._table = table
        wanted = None if columns is None else {name.lower() for name in columns}
        self._schema = pa.schema([field for field in table.schema if wanted is None or field.name.lower() in wanted])
        self._are_small = columns is not None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Begin at the first row."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        table = self._table
        files = table.files().select(["path", *(f"{_PARTITION}{name}" for name in table.partitions)])
        for path, *values in zip(*(column.to_pylist() for column in files.columns), strict=True):
            rows = table.rows(path, dict(zip(table.partitions, values, strict=True)))
            yield from rows.columns(self._schema.names, are_small=self._are_small)


def _all_equal(names: Iterable[str], values: Iterable[Any]) -> pads.Expression:
    import pyarrow.dataset as pads

    found: pads.Expression | None = None
    for name, value in zip(names, values, strict=True):
        one = pads.field(name).is_null() if value is None else pads.field(name) == value
        found = one if found is None else found & one
    return pads.scalar(True) if found is None else found
