"""One coordinator for each warehouse: by a lock on a local file system, and by epochs everywhere (contract 4.7)."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.config import Config
from commitlake.config.locations import is_local, local_path
from commitlake.coordinator.recovery import jvm_lock
from commitlake.coordinator.recovery.jvm_lock import JvmLock
from commitlake.errors import FencedError, WarehouseError
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.protocol.version import CONTRACT, __version__
from commitlake.reading.markers import commit_file
from commitlake.spark.files import FileSystem
from commitlake.tables import TABLES, Warehouse, commits, topic_table
from commitlake.tables.warehouse import AppendGuard

log = logging.getLogger(__name__)

FENCED = tuple(name for name in TABLES if name != "epochs")
"""Tables that a new epoch fences where there is no lock: an older coordinator's append in flight then fails."""
_PROPERTY = "commitlake.epoch"
_ORDER = ("epoch", "started_at", "host", "pid")  # so even of two starts with the same number one is the newer

FIRST_EPOCH = 1
_LOOK_S = 0.5


class WarehouseLock:
    """An OS lock on a local warehouse for the life of the process and, with a session, of its JVM.

    Delta's commit is not atomic between processes on a local file system, so epochs alone do not suffice there. The
    lock is taken before anything is appended: a newcomer that appended its epoch first would fence the coordinator
    that runs. The JVM commits, and lives on for seconds when its Python is killed, so it holds a lock too.

    Args:
        directory: of the warehouse.
        spark: the session whose JVM commits; None when no JVM does.
        wait_s: how long to wait for the JVM of a Python that is gone; None for `jvm_lock.WAIT_S`.
    """

    def __init__(self, directory: str, spark: SparkSession | None = None, wait_s: float | None = None) -> None:
        self._path = local_path(directory) / ".coordinator.lock"
        self._spark, self._wait_s = spark, jvm_lock.WAIT_S if wait_s is None else wait_s
        self._file: IO[str] | None = None
        self._jvm_lock = JvmLock(self._path.parent)

    def __enter__(self) -> Self:
        """Takes the lock.

        Raises:
            FencedError: another process holds it.
            WarehouseError: the warehouse can't be written.
        """
        self._file = self._open()
        try:
            self._take()
        except BaseException:
            self._free()
            raise
        self.name_holder(epoch=None)
        return self

    def _take(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise self._refusal() from error
        self._await_jvm()
        if self._spark is not None and not self._jvm_lock.take(self._spark):
            raise self._refusal(self._left_behind())

    def _await_jvm(self) -> None:
        """Waits for the JVM of the Python that had the lock before."""
        if self._jvm_lock.is_free():
            return
        if self._wait_s:
            left = f"{self._holder()}{self._left_behind()}"
            log.warning("waiting for it to end, at most %.0f s: the coordinator %s", self._wait_s, left)
        if not self._jvm_lock.await_free(self._wait_s):
            raise self._refusal(self._left_behind())

    def _left_behind(self) -> str:
        return f", whose Python process is gone and whose JVM, pid {self._jvm_lock.holder}, is not"

    def _refusal(self, state: str = "") -> FencedError:
        return FencedError(
            f"another coordinator runs on this warehouse: {self._holder()}{state}; stop it first, or use another "
            "`warehouse`"
        )

    def _holder(self) -> str:
        return self._path.read_text(encoding="utf-8").strip() or "unknown"

    def _open(self) -> IO[str]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._path.open("a+", encoding="utf-8")
        except OSError as error:
            msg = f"warehouse: cannot write to {self._path.parent}: {error.strerror}; choose another place, or allow it"
            raise WarehouseError(msg) from error

    def name_holder(self, epoch: int | None) -> None:
        """Writes the holder of the lock to its file, for the error of a newcomer."""
        if self._file is None:
            return
        self._file.truncate(0)
        self._file.write(describe_self(epoch))
        self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free()

    def _free(self) -> None:
        self._jvm_lock.release()
        if self._file is not None:
            self._file.close()
            self._file = None


def describe(host: str, pid: int, epoch: int | None) -> str:
    """The text by which errors name a coordinator."""
    return f"host {host}, pid {pid}, epoch {'not yet known' if epoch is None else epoch}"


def describe_self(epoch: int | None) -> str:
    """The same of this process."""
    return describe(socket.gethostname(), os.getpid(), epoch)


def begin_epoch(warehouse: Warehouse, version: str, *, is_first: bool = False) -> int:
    """Appends this start to `epochs`; returns its number. With `is_first` no earlier number is looked up.

    Raises:
        WarehouseError: a coordinator of a newer contract has started here.
    """
    newest = None if is_first else _newest_but_newer(warehouse)
    epoch = FIRST_EPOCH if newest is None else newest + 1
    values = {"epoch": epoch, "host": socket.gethostname(), "pid": os.getpid(), "version": version}
    values |= {"contract": CONTRACT}
    warehouse.add([values | {"started_at": as_datetime(now_ms())}], "epochs", {"epoch": epoch})
    return epoch


def _newest_but_newer(warehouse: Warehouse) -> int | None:
    """The newest epoch; raises before anything is written: a rejected start must not fence the running coordinator."""
    newest = F.max("epoch").alias("epoch"), F.max(F.struct("contract", "version")).alias("highest")
    found = warehouse.read("epochs").agg(*newest).collect()[0]
    if found["highest"] is not None and (found["highest"]["contract"] or 0) > CONTRACT:
        contract, version = found["highest"]
        msg = (
            f"warehouse: CommitLake {version} has run on {warehouse.root}, by version {contract} of the contract; this "
            f"one knows {CONTRACT}: start that version or a later one, or bring back a backup from before it"
        )
        raise WarehouseError(msg)
    return None if found["epoch"] is None else int(found["epoch"])


def fence(warehouse: Warehouse, epoch: int, names: Iterable[str]) -> None:
    """Sets the epoch as a property of tables: a commit with which an older coordinator's appends conflict."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: warehouse.set_property(name, _PROPERTY, describe_self(epoch)), names))


class EpochGuard(AppendGuard):
    """Keeps an older coordinator from appending where no lock does; `docs/architecture.md` explains why it has no gap.

    An append reads `epochs` in its own plan, so after Delta has fixed the version of the table that the append starts
    from. The append fails when there is a newer epoch. A newer coordinator appends its epoch, and then fences the
    tables. So an older coordinator's append has three cases. Either the append has read the newer epoch, and fails. Or
    it started from a version before the fence, and fails as a conflict. Or it is committed before the newer coordinator
    has read anything.
    """

    fences = True

    def __init__(self, warehouse: Warehouse, epoch: int) -> None:
        self._warehouse, self._epoch = warehouse, epoch
        self._seen: tuple[int, str] | None = None
        """Number and text of the newest commit of `epochs` that was checked: up to it there is no newer epoch."""

    def rows(self, rows: DataFrame) -> DataFrame:
        """The rows, in a plan that fails if there is a newer epoch when they are written."""
        newest = _newest(self._warehouse, self._epoch)
        own = F.struct(F.lit(self._epoch).cast("bigint"), F.lit(socket.gethostname()), F.lit(os.getpid()))
        error = F.raise_error(F.lit("a newer epoch has begun"))
        passes = F.when(F.struct("epoch", "host", "pid") == own, True).otherwise(error)
        return rows.where(newest.select(passes).scalar())

    def check(self) -> None:
        """The check of `rows`, for rows that the driver has: between the begin of a Delta transaction and its commit.

        When `epochs` has no new commit, the table is not read again: two looks at its log replace a job of Spark.
        """
        log = self._warehouse.log("epochs")
        if log is None or not self._is_seen(log):
            newest = None if log is None else next(commits.newest_first(log), None)
            check(self._warehouse, self._epoch)
            self._seen = newest

    def _is_seen(self, log: FileSystem) -> bool:
        """Whether the commit that was seen is still the newest.

        If it is gone, later commits may be gone too: Delta deletes the oldest first. If its text differs, the table was
        recreated or restored.
        """
        if self._seen is None:
            return False
        version, text = self._seen
        return not log.exists(commit_file(version + 1)) and log.read(commit_file(version)) == text

    def for_tables(self, warehouse: Warehouse) -> AppendGuard:
        """The same guard for the same tables in another session."""
        return EpochGuard(warehouse, self._epoch)

    def fence(self, topics: Iterable[str]) -> None:
        """Fences topic tables: those of a batch that was cut short, and each one before this run's first rows in it."""
        fence(self._warehouse, self._epoch, map(topic_table, topics))


def check(warehouse: Warehouse, epoch: int) -> None:
    """Stops an older coordinator, and one of two that started at the same moment with the same number.

    Raises:
        FencedError: a newer coordinator has started.
    """
    newest = _newest(warehouse, epoch).collect()[0]
    if (newest["epoch"], newest["host"], newest["pid"]) != (epoch, socket.gethostname(), os.getpid()):
        other = describe(newest["host"], newest["pid"], newest["epoch"])
        msg = (
            f"another coordinator has taken over this warehouse: {other}; this one (epoch {epoch}) stops; run only one"
        )
        raise FencedError(msg)


def newest(warehouse: Warehouse) -> str | None:
    """The newest start, as errors name it; None when there is none."""
    found = _newest(warehouse).collect()[0]
    return None if found["epoch"] is None else describe(found["host"], found["pid"], found["epoch"])


def _newest(warehouse: Warehouse, since: int = FIRST_EPOCH) -> DataFrame:
    """The newest start, one row; of nulls when there is none. By `since` the files of older starts are not read."""
    found = warehouse.read("epochs").where(F.col("epoch") >= since)
    return found.agg(F.max(F.struct(*_ORDER)).alias("newest")).select("newest.*")


@contextmanager
def lock(config: Config, spark: SparkSession, wait_s: float | None = None) -> Iterator[WarehouseLock | None]:
    """The lock of a local warehouse, None for another warehouse.

    Raises:
        FencedError: another coordinator holds the lock.
    """
    if is_local(config.warehouse):
        with WarehouseLock(config.warehouse, spark, wait_s) as taken:
            yield taken
    else:
        yield None


def await_lock(config: Config, spark: SparkSession) -> None:
    """Waits until nobody holds the lock of a local warehouse."""
    is_told = False
    while True:
        try:
            with lock(config, spark, wait_s=0):
                return
        except FencedError as error:
            if not is_told:
                log.warning("standing by: %s", error)
            is_told = True
            time.sleep(_LOOK_S)


@dataclass(frozen=True)
class Ownership:
    """Proof that this process owns the warehouse: by a lock, or by its epoch alone.

    Attributes:
        lock: the lock of a local warehouse.
        epoch: number of this start, 0 before it.
        is_new: whether no coordinator ever ran on a local warehouse.
    """

    lock: WarehouseLock | None = None
    epoch: int = 0
    is_new: bool = False

    def lost(self, warehouse: Warehouse) -> FencedError | None:
        """The error that a newer coordinator has the warehouse, None when that is not seen.

        Tables may be out of reach, too.
        """
        try:
            with suppress(PySparkException, WarehouseError):
                if self.lock is None and self.epoch:
                    check(warehouse, self.epoch)
        except FencedError as error:
            return error
        return None


def own(warehouse: Warehouse, lock: WarehouseLock | None, before: int = 0) -> Ownership:
    """Creates the tables and begins an epoch; `fence_older` follows.

    Args:
        warehouse: the tables.
        lock: the lock that is held, None when there can be none.
        before: the epoch that this process has had so far, 0 at its start.

    Raises:
        FencedError: a newer coordinator has started meanwhile.
    """
    if before and lock is None:
        check(warehouse, before)
    is_new = warehouse.create() and lock is not None
    epoch = begin_epoch(warehouse, __version__, is_first=is_new)
    if lock is None:
        return Ownership(None, epoch)  # without a lock two coordinators may be the first
    lock.name_holder(epoch)
    # `epochs` alone may have been lost; without a row of `positions` nothing has landed.
    return Ownership(lock, epoch, is_new=epoch == FIRST_EPOCH and warehouse.rows("positions").isEmpty())


def fence_older(warehouse: Warehouse, owner: Ownership) -> None:
    """Ends the appends of an older coordinator where there is no lock; the tables get a guard for their own.

    This is not part of `own`, so that the next begin knows the epoch even if this fails.

    Raises:
        FencedError: a newer coordinator has started meanwhile.
    """
    if owner.lock is None:
        warehouse.guard = EpochGuard(warehouse, owner.epoch)
        check(warehouse, owner.epoch)  # of two, a fence by the older would stop the newer
        fence(warehouse, owner.epoch, FENCED)
