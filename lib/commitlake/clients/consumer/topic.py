"""The table of a topic as a consumer sees it: windows of rows behind the cursors of its queues."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from commitlake.clients.consumer import missing
from commitlake.clients.consumer.cursor import Cursor, Keys
from commitlake.clients.consumer.plan import WINDOW_BYTES, FileStatistics, Part, Plan, Window
from commitlake.clients.consumer.rows import NEEDED, ORDER_COLUMNS, PLACE_COLUMNS, keys_of, place_texts
from commitlake.errors import NoTableError
from commitlake.reading import features
from commitlake.reading.parquet import Numbers, ParquetRows
from commitlake.reading.table import Options, Snapshot

BUDGET = 4 << 20
"""Bytes of files that are looked at together: their keys are in memory, some 100 bytes a row."""
_MOST_RECENT, _RECENT_BYTES = 256, 256 << 10
"""Small files of all topics that stay in memory for other groups, and the largest bytes of one file's rows."""
_RECENT: dict[tuple[int, str], pa.Table] = {}
_KEEPING, _NUMBERS = threading.Lock(), itertools.count()
_HIGHEST = 1 << 62
T = TypeVar("T")


class Listing(NamedTuple):
    """The files of a version, with values that are needed often, computed once."""

    files: pa.Table
    known: FileStatistics
    paths: list[str]
    queues: list[int]
    deleted: Mapping[str, Numbers]


class TopicFiles(Snapshot):
    """A topic's table, shared by all groups of this process, with the rows of small files that one has just read."""

    def __init__(self, place: str, options: Options = None) -> None:
        super().__init__(place, options)
        self._listing: Listing | None = None
        self._number = next(_NUMBERS)

    def listing(self) -> Listing:
        """The files of the snapshot; a new object for each version."""
        found = self._listing
        if found is not None and found.files is self._actions:
            return found
        with self._lock:
            files, found = self.files(), self._listing
            if found is None or found.files is not files:
                features.refuse_columns(self.place, self.column_names(), NEEDED)
                paths, queues = (files[name].to_pylist() for name in ("path", "partition.queue_id"))
                found = self._listing = Listing(files, statistics(files), paths, queues, self.deleted())
            return found

    def keep(self, path: str, rows: pa.Table) -> None:
        """Cache all rows of a small file: files never change, and this one has no deletion vector."""
        if rows.nbytes <= _RECENT_BYTES:
            with _KEEPING:
                _RECENT[self._number, path] = rows
                if len(_RECENT) > _MOST_RECENT:
                    del _RECENT[next(iter(_RECENT))]

    def recent(self, path: str) -> pa.Table | None:
        """All rows of a file, if cached; else None."""
        return _RECENT.get((self._number, path))


class Topic:
    """Reads the table of a topic.

    Attributes:
        place: Where the table is.
        id: Id of the table; a table that is created at the same place later has another id.

    Raises:
        NoTableError: There is no table.
        WarehouseError: The table can't be read.
    """

    def __init__(self, place: str, options: Options = None) -> None:
        try:
            self._table = TopicFiles.shared(place, options)
        except NoTableError:
            raise NoTableError(missing.told(place)) from None
        self.place, self.id, self.schema = self._table.place, self._table.id, self._table.schema
        self._credentials = self._table.credentials()
        self._finished: set[str] = set()  # files, which never change, without a row behind the cursors
        self._plan: Plan | None = None
        self._take_files()

    def refresh(self, *, of_late: bool = False) -> bool:
        """Go to the newest version, or with `of_late` to one that a group has just read; True if it is new here."""
        if not (of_late and self._table.is_fresh()):
            self._table.refresh()
        is_new = self._table.listing() is not self._all
        if is_new:
            self._plan = None  # its row numbers are wrong if a new deletion vector removes rows
            self._take_files()
        return is_new

    def _take_files(self) -> None:
        self._all = self._table.listing()
        self._left: Sequence[int] = range(len(self._all.paths))
        self._finished &= set(self._all.paths)

    def queues(self) -> set[int]:
        """Destination queues that have rows."""
        return set(self._all.queues)

    def begin(self, queue: int) -> None:
        """Note that a queue is read from another cursor than before."""
        self._plan, paths, queues = None, self._all.paths, self._all.queues
        self._finished -= {path for path, other in zip(paths, queues, strict=True) if other == queue}
        self._left = range(len(paths))

    def next(self, cursors: Mapping[int, Cursor]) -> Window | None:
        """The next rows of these queues behind their cursors; None when there are none.

        The caller moves each cursor behind the window, and calls `begin` for a cursor that moves otherwise.
        """
        return self._at_newest(lambda: self._next(cursors))

    def _at_newest(self, read: Callable[[], T]) -> T:
        """Read; retry from the newest version if maintenance has removed files that the snapshot names."""
        try:
            return read()
        except FileNotFoundError:
            self.refresh()
            return read()

    def _next(self, cursors: Mapping[int, Cursor]) -> Window | None:
        if (credentials := self._table.credentials()) is not self._credentials:
            self._plan, self._credentials = None, credentials  # its open files have the former ones
        plan = self._plan
        if plan is not None and plan.is_over():
            self._finished.update(plan.finishes)
        if plan is None or plan.is_over() or plan.queues != cursors.keys():
            self._plan = self._planned(cursors)
        return self._plan.next() if self._plan is not None else None

    def _planned(self, cursors: Mapping[int, Cursor]) -> Plan | None:
        """A plan of the next rows; None when no file has more.

        While no row of the files may be handed over yet, more files are looked at, twice as many each time.
        """
        looked: dict[int, Part] = {}
        files = self._unfinished(cursors)
        while len(files):
            known = self._all.known.where(files)
            order = known.in_order()
            count = max(1, int((np.cumsum(known.size[order]) <= BUDGET).sum()), 2 * len(looked))
            parts = self._behind(files[order[:count]].tolist(), cursors, looked)
            chosen, left = order[: len(parts)], known.where(order[len(parts) :])
            keys = Keys.joined([part.keys for part in parts])
            allowed = left.come_after(keys)
            is_whole = len(left.size) == 0 or allowed.all()
            finishes = [self._all.paths[file] for file in files[chosen].tolist()] if is_whole else []
            if allowed.any():
                return Plan(cursors.keys(), parts, keys, allowed, finishes)
            self._finished.update(finishes)
            if len(left.size) == 0:
                return None
            files = self._unfinished(cursors)
        return None

    def find(self, places: Collection[Mapping[str, Any]]) -> pa.Table:
        """Rows of messages by their `PLACE_COLUMNS`; missing rows are left out."""
        return self._at_newest(lambda: self._find(places))

    def _find(self, places: Collection[Mapping[str, Any]]) -> pa.Table:
        wanted = pa.Table.from_pylist([{name: place[name] for name in PLACE_COLUMNS} for place in places])
        wanted = wanted.cast(pa.schema([self.schema.field(name) for name in PLACE_COLUMNS]))
        texts, offsets = place_texts(wanted), np.sort(wanted["source_offset"].to_numpy())
        files, known = self._all.files, self._all.known
        has = np.searchsorted(offsets, known.first_offset) < np.searchsorted(offsets, known.last_offset, "right")
        found, left = [self.schema.empty_table()], WINDOW_BYTES
        for path, queue in _paths(files.filter(pa.array(has))):
            rows = self._rows(path, queue)
            texts_of = [np.isin(place_texts(batch), texts) for batch in rows.columns(PLACE_COLUMNS)]
            numbers = np.flatnonzero(np.concatenate([[], *texts_of]))
            if len(numbers) and left > 0:
                found.append(rows.take(numbers, left))
                left -= found[-1].nbytes
        return pa.concat_tables(found)

    def unfinished(
        self, cursors: Mapping[int, Cursor] | None, offsets: Collection[int], columns: Sequence[str], first: int
    ) -> Iterator[tuple[Iterator[pa.RecordBatch], datetime | None]]:
        """Rows behind the cursors of their queues, and rows with one of some source_offsets, batch by batch.

        The rows come in parts. Files whose rows became visible first come first.

        Args:
            cursors: cursors by queue; None for a group without any: then all rows count as behind.
            offsets: source_offsets.
            columns: columns of the rows; the column `is_behind` is added.
            first: files in the first part; each further part has twice as many.

        Yields:
            Rows, and the lowest `visible_at` that a later part may have; None for the last part.
        """
        files, known, wanted = self._all.files, self._all.known, np.unique(np.asarray([*offsets], np.int64))
        has = np.searchsorted(wanted, known.first_offset) < np.searchsorted(wanted, known.last_offset, "right")
        reached = {queue: (cursors or {}).get(queue, Cursor()) for queue in self.queues()}
        has[self._unfinished(reached)] = True
        files = files.filter(pa.array(has))
        since = _column(files, "min.visible_at")
        order = pc.array_sort_indices(since, null_placement="at_start")
        files, since = files.take(order), [*since.take(order).to_pylist(), None]
        begin, count = 0, max(1, first)
        while begin < files.num_rows:
            part = files.slice(begin, count)
            begin, count = begin + part.num_rows, 2 * count
            yield self._unfinished_of(part, reached, wanted, columns), since[begin]

    def _unfinished_of(
        self, files: pa.Table, reached: Mapping[int, Cursor], wanted: npt.NDArray[np.int64], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch, behind in self._compared(files, reached, columns):
            rows = batch.append_column("is_behind", pa.array(behind))
            yield rows.filter(pa.array(behind | np.isin(batch["source_offset"].to_numpy(), wanted)))

    def behind(self, cursors: Mapping[int, Cursor], most_rows: int | None = None) -> tuple[int, datetime | None]:
        """How many rows are behind the cursors of their queues, and when the oldest of them became visible.

        Args:
            cursors: cursors by queue; a queue without one counts from its first row.
            most_rows: how many rows are compared; in further files all rows count. None: no limit.
        """
        reached = {queue: cursors.get(queue, Cursor()) for queue in self.queues()}
        files = self._all.files.take(self._unfinished(reached))
        is_whole = self._are_behind(files, reached)
        numbers = np.where(is_whole, 0, _filled(files, "num_records", 0))
        is_whole |= np.cumsum(numbers) - numbers >= (_HIGHEST if most_rows is None else most_rows)
        whole = files.filter(pa.array(is_whole))
        count, firsts = int(_filled(whole, "num_records", 0).sum()), [pc.min(_column(whole, "min.visible_at")).as_py()]
        for batch, behind in self._compared(files.filter(pa.array(~is_whole)), reached, ["visible_at"]):
            count += int(behind.sum())
            firsts.append(pc.min(batch["visible_at"].filter(pa.array(behind))).as_py())
        return count, min((first for first in firsts if first is not None), default=None)

    def _are_behind(self, files: pa.Table, reached: Mapping[int, Cursor]) -> npt.NDArray[np.bool_]:
        """For each file, whether its statistics alone show that all its rows are behind the cursor of its queue."""
        known, queues, deleted = statistics(files), files["partition.queue_id"].to_pylist(), self._all.deleted
        ahead = [known.is_ahead(index, reached[queue]) for index, queue in enumerate(queues)]
        has_all = pc.and_(files["num_records"].is_valid(), _column(files, "min.visible_at").is_valid())
        is_kept = np.array([path not in deleted for path in files["path"].to_pylist()], bool)
        found: npt.NDArray[np.bool_] = np.array(ahead, bool) & is_kept & has_all.to_numpy().astype(bool)
        return found

    def _compared(
        self, files: pa.Table, reached: Mapping[int, Cursor], columns: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_]]]:
        """Rows of files, batch by batch, and for each row whether it is behind the cursor of its queue."""
        for path, queue in _paths(files):
            for batch in self._rows(path, queue).columns(list(dict.fromkeys((*columns, *ORDER_COLUMNS)))):
                yield batch, reached[queue].is_before(keys_of(batch))

    def ends(self, before_ms: int | None = None) -> dict[int, Cursor]:
        """Cursors behind all rows that are visible now, or became visible before a time (ms since epoch, UTC)."""
        files = self._all.files
        condition = None
        if before_ms is not None:
            time = pa.scalar(before_ms * 1_000, pa.timestamp("us", "UTC"))
            condition = pads.field("visible_at") < time
            files = files.filter(pc.less(files["min.visible_at"], time).fill_null(True))
        found = {queue: Cursor() for queue in self.queues()}
        scanned = self._table.dataset(files).scanner(columns=list(ORDER_COLUMNS), filter=condition)
        for batch in scanned.to_batches():
            keys = keys_of(batch)
            ids = batch["queue_id"].to_numpy()
            for queue in np.unique(ids):
                found[int(queue)].advance_to_end(keys.where(ids == queue))
        return found

    def _unfinished(self, cursors: Mapping[int, Cursor]) -> Numbers:
        """Numbers, in the listing, of the files that may have rows behind the cursor of their queue."""
        known, paths, queues = self._all.known, self._all.paths, self._all.queues
        self._left = [file for file in self._left if paths[file] not in self._finished]
        mine = [file for file in self._left if queues[file] in cursors]
        done = {file for file in mine if known.is_finished(file, cursors[queues[file]])}
        self._finished.update(paths[file] for file in done)
        return np.array([file for file in mine if file not in done], np.int64)

    def _behind(self, files: Sequence[int], cursors: Mapping[int, Cursor], looked: dict[int, Part]) -> list[Part]:
        """The rows of files behind the cursors. Rows of small files are loaded while `WINDOW_BYTES` has room.

        The first call stops where the room ends. Later calls go on without room, and load keys alone: no row could be
        handed over before more files are known.

        Args:
            files: numbers of the files, in order.
            cursors: cursors by queue.
            looked: parts of files, from the calls before; this call adds its own.
        """
        left = WINDOW_BYTES - sum(part.table.nbytes for part in looked.values())
        is_first = not looked
        for file in files:
            if is_first and looked and left <= 0:
                break
            if file not in looked:
                path, queue, size = self._all.paths[file], self._all.queues[file], self._all.known.size[file]
                is_small = 0 < size <= BUDGET
                is_whole = path not in self._all.deleted
                table, rows = self._table.recent(path) if left > 0 and is_whole else None, None
                if table is None:
                    rows = self._rows(path, queue)
                    table = rows.take(np.arange(rows.count if is_small and left > 0 else 0), left)
                    if table.num_rows == rows.count:
                        if is_whole:
                            self._table.keep(path, table)
                        rows = None
                left -= table.nbytes
                # A small file is opened again, else thousands would be open at once. A large one stays open.
                looked[file] = _part(
                    table, rows, cursors[queue], partial(self._rows, path, queue) if is_small else None
                )
        return [looked[file] for file in files if file in looked]

    def _rows(self, path: str, queue: int) -> ParquetRows:
        return self._table.rows(path, {"queue_id": queue}, "body", self._all.deleted)


def _part(table: pa.Table, rows: ParquetRows | None, cursor: Cursor, again: Callable[[], ParquetRows] | None) -> Part:
    """The rows of a file behind a cursor. All rows are in `table`, or `rows` reads them; `again` reopens the file."""
    keys = keys_of(table) if rows is None else Keys.joined([keys_of(batch) for batch in rows.columns(ORDER_COLUMNS)])
    numbers = np.flatnonzero(cursor.is_before(keys))
    if len(numbers) < len(keys.batch):
        keys = keys.where(numbers)
    if rows is None:
        return Part(keys, numbers, None, table)
    kept = rows
    return Part(keys, numbers, again or (lambda: kept), table.slice(0, 0))


def _paths(files: pa.Table) -> Iterator[tuple[str, int]]:
    return zip(files["path"].to_pylist(), files["partition.queue_id"].to_pylist(), strict=True)


def statistics(files: pa.Table) -> FileStatistics:
    """Statistics of files; a missing one gets the widest range."""
    rows, nulls = files["num_records"], _column(files, "null_count.batch_id")
    all_normal = pc.equal(nulls, rows).fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
    has_normal = pc.greater(nulls, 0).fill_null(True).to_numpy(zero_copy_only=False).astype(bool)
    return FileStatistics(
        written=_filled(files, "modification_time", 0),
        size=_filled(files, "size_bytes", 0),
        first_batch=np.where(all_normal, _HIGHEST, _filled(files, "min.batch_id", -1)),
        last_batch=np.where(all_normal, -1, _filled(files, "max.batch_id", _HIGHEST)),
        has_normal=has_normal,
        first_queue=_filled(files, "min.source_queue", -1),
        last_queue=_filled(files, "max.source_queue", _HIGHEST),
        first_offset=_filled(files, "min.source_offset", -1),
        last_offset=_filled(files, "max.source_offset", _HIGHEST),
    )


def _column(files: pa.Table, name: str) -> pa.ChunkedArray:
    if name in files.column_names:
        return files[name]
    return pa.chunked_array([pa.nulls(files.num_rows, pa.int64())])


def _filled(files: pa.Table, name: str, default: int) -> Numbers:
    values = _column(files, name).cast(pa.int64())
    return np.asarray(pc.fill_null(values, default).to_numpy(), np.int64)
