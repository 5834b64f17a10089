"""Whether a coordinator runs on a warehouse, as seen from outside; nothing is locked or written."""

from __future__ import annotations

import fcntl
import struct
import sys
from pathlib import Path

from commitlake.config import Config, databricks
from commitlake.config.locations import JVM_LOCK, SIGN_OF_LIFE, is_local, local_path
from commitlake.errors import WarehouseError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import Tables, epoch_ms
from commitlake.reading.table import file_time_ms

# `struct flock`, up to the last field that is read: that of Linux, and that of macOS and the BSDs.
_LINUX = struct.Struct("hhqqi")
_BSD = struct.Struct("qqihh")
_WRITTEN = {"batches": "completed_at", "epochs": "started_at"}
"""Tables with a time at which a coordinator did something, and the column of that time."""


def runs(config: Config) -> bool:
    """Whether a coordinator holds a local warehouse, or has lately given a sign of life on another one.

    Raises:
        WarehouseError: the place of its signs can't be read here.
    """
    if is_local(config.warehouse):
        return _is_locked(local_path(config.warehouse) / JVM_LOCK)
    sign = _sign_ms(config)
    return sign is not None and now_ms() - sign <= config.standby_after_ms


def last_seen_ms(tables: Tables, config: Config) -> int:
    """When a coordinator gave its last sign of life, or wrote last; ms since epoch, UTC."""
    sign = None if is_local(config.warehouse) else _sign_ms(config)
    written = [tables.greatest(name, column) for name, column in _WRITTEN.items()]
    return max([sign or 0, *(epoch_ms(at) for at in written if at is not None)])


def _sign_ms(config: Config) -> int | None:
    place = config.signs_at
    if databricks.is_out_of_reach(place):
        msg = f"checkpoints: {place} is seen on Databricks only, and so is whether a coordinator runs; look at its job"
        raise WarehouseError(msg)
    return file_time_ms(str(databricks.volume(place) or place), SIGN_OF_LIFE)


def _is_locked(path: Path) -> bool:
    """Asks who holds the lock of the JVM that commits; to take the lock, even for a moment, could stop a start."""
    is_bsd = sys.platform != "linux"
    asked = _BSD.pack(0, 0, 0, fcntl.F_WRLCK, 0) if is_bsd else _LINUX.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
    try:
        with path.open("rb") as file:
            found = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except FileNotFoundError:
        return False
    kind = _BSD.unpack(found)[3] if is_bsd else _LINUX.unpack(found)[0]
    return bool(kind != fcntl.F_UNLCK)
