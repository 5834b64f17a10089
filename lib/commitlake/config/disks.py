"""The local disks that a configuration names: how much room there is, when landing waits, and a ballast file.

A write that fails ends a coordinator, and without it nobody deletes old rows. So landing waits before a disk is full.
Where other programs have filled it, the deletion of the ballast file gives maintenance room.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commitlake.config.config import Config
from commitlake.config.locations import is_local, local_path

_LEAST = 512 << 20
_LEAST_PART = 20
"""On a small disk landing waits when only a twentieth is free."""
_PLENTY = 4
_SCARCE_PART = 5
"""Inodes count only where fewer than a fifth of them are free."""
_FULL = ("No space left on device", "Disk quota exceeded")
WAITS = "nothing lands until there is more room, and nothing is lost: %s"
"""The log's warning, once a minute, while a disk is short."""
REMEDY = "docs/runbook.md#commitlakedisknearlyfull"
BALLAST = ".commitlake-ballast"
"""The file of a local warehouse that exists only to be deleted when room is needed."""


@dataclass(frozen=True)
class Disk:
    """The room on a directory's disk.

    Attributes:
        key: key of the configuration that names the directory.
        place: the directory.
        free: bytes that may still be written; where inodes are scarcer, only their share of the total.
        total: bytes that it has.
        is_by_inodes: whether inodes limit `free`.
    """

    key: str
    place: Path
    free: int
    total: int
    is_by_inodes: bool

    @classmethod
    def of(cls, key: str, place: Path) -> Disk:
        """The disk of a directory, which need not exist yet."""
        above = (place.absolute(), *place.absolute().parents)
        there = next(each for each in above if os.path.exists(each))  # raises no error for lack of permission
        space = os.statvfs(there)
        free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        # Some file systems report no number of files, or none that is free.
        is_scarce = 0 < space.f_favail < space.f_files // _SCARCE_PART
        files = total * space.f_favail // space.f_files if is_scarce else free
        return cls(key, place, min(free, files), total, files < free)

    @property
    def least(self) -> int:
        """Bytes that landing leaves free. The ballast has as many, so landing does not use the room that it gives."""
        return min(_LEAST, self.total // _LEAST_PART)

    @property
    def is_short(self) -> bool:
        """Whether landing waits; some network file systems report no size, and are never short."""
        return self.total > 0 and self.free <= self.least

    @property
    def is_full(self) -> bool:
        """Whether no query may begin. The room of a deleted ballast is enough to begin, and for maintenance."""
        return self.is_short and self.free <= self.least // 2

    def __str__(self) -> str:
        inodes = ", as far as its inodes go" if self.is_by_inodes else ""
        return f"{self.key} {self.place}: {_size(self.free)} of {_size(self.total)} free{inodes}"


def _size(size: int) -> str:
    return f"{size / 2**30:.0f} GiB" if size >= 10 << 30 else f"{size / 2**20:.0f} MiB"


def disks(config: Config) -> Iterator[Disk]:
    """The disks of the tables and of Spark's checkpoints, where these are local; they may be the same disk."""
    for key, place in (("warehouse", config.warehouse), ("checkpoints", config.checkpoints)):
        if is_local(place):
            yield Disk.of(key, local_path(place))


def short(config: Config) -> str:
    """Text about the disks with so little room that landing waits; empty when there is none."""
    return _listed(disk for disk in disks(config) if disk.is_short)


def full(config: Config) -> str:
    """Text about the disks with so little room that no query begins; empty when there is none."""
    return _listed(disk for disk in disks(config) if disk.is_full)


def with_room(reason: str, config: Config) -> str:
    """The reason of a failure; for lack of room, with the room of each directory that it may have been about."""
    if not any(each in reason for each in _FULL):
        return reason
    temporary = Disk.of("temporary files", Path(tempfile.gettempdir()))
    return f"{reason} ({_listed([*disks(config), temporary])}; {REMEDY})"


def _listed(found: Iterable[Disk]) -> str:
    return "; ".join(map(str, found))


def keep_ballast(config: Config) -> None:
    """Makes the ballast of a local warehouse, if it is missing or incomplete, and there is plenty of room."""
    for disk in disks(config):
        file = disk.place / BALLAST
        there = file.stat().st_size if file.exists() else 0  # a kill while it is made leaves less
        if disk.key == "warehouse" and there < disk.least and disk.free > _PLENTY * disk.least:
            _allocate(file, disk.least)


def _allocate(file: Path, size: int) -> None:
    try:
        with file.open("wb") as made:
            os.posix_fallocate(made.fileno(), 0, size)
    except OSError:  # the file system can't, or others have taken the room meanwhile
        with suppress(OSError):
            file.unlink(missing_ok=True)


def free_ballast(config: Config) -> int:
    """Deletes the ballast; returns its size in bytes, 0 where there was none."""
    size = 0
    for disk in disks(config):
        with suppress(FileNotFoundError):
            size += (file := disk.place / BALLAST).stat().st_size
            file.unlink()
    return size
