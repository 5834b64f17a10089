"""The local disks that a configuration names: how much room there is, when landing waits, and a ballast file.

A write that fails ends a coordinator, and without it nobody deletes old rows. So landing waits before a disk is full;
and where others have filled it, a file that is there to be deleted gives maintenance room.
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
"""Of a small disk: landing waits when a twentieth is free."""
_PLENTY = 4
_SCARCE_PART = 5
"""Of the inodes: where more are free nobody needs to hear of them."""
_FULL = ("No space left on device", "Disk quota exceeded")
WAITS = "nothing lands until there is more room, and nothing is lost: %s"
"""What the log says once a minute while a disk is short."""
REMEDY = "docs/runbook.md#commitlakedisknearlyfull"
BALLAST = ".commitlake-ballast"
"""The file of a local warehouse that is there to be deleted."""


@dataclass(frozen=True)
class Disk:
    """What a directory's disk has.

    Attributes:
        key: of the configuration, which names the directory.
        place: the directory.
        free: bytes that may still be written; where fewer files than that may still be made, as many as are in them.
        total: bytes that it has.
        is_by_inodes: whether that is so.
    """

    key: str
    place: Path
    free: int
    total: int
    is_by_inodes: bool

    @classmethod
    def of(cls, key: str, place: Path) -> Disk:
        """That of a directory, which need not be there yet."""
        above = (place.absolute(), *place.absolute().parents)
        there = next(each for each in above if os.path.exists(each))  # no error below one that is closed
        space = os.statvfs(there)
        free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        # Some file systems tell no number of files, or none that is free.
        is_scarce = 0 < space.f_favail < space.f_files // _SCARCE_PART
        files = total * space.f_favail // space.f_files if is_scarce else free
        return cls(key, place, min(free, files), total, files < free)

    @property
    def least(self) -> int:
        """Bytes that landing leaves free. The ballast has as many, so that landing does not take its room."""
        return min(_LEAST, self.total // _LEAST_PART)

    @property
    def is_short(self) -> bool:
        """Whether landing waits; some network file systems tell no size."""
        return self.total > 0 and self.free <= self.least

    @property
    def is_full(self) -> bool:
        """Whether not even the room of a ballast is there, with which queries may begin and maintenance may run."""
        return self.is_short and self.free <= self.least // 2

    def __str__(self) -> str:
        """For people."""
        inodes = ", as far as its inodes go" if self.is_by_inodes else ""
        return f"{self.key} {self.place}: {_size(self.free)} of {_size(self.total)} free{inodes}"


def _size(size: int) -> str:
    return f"{size / 2**30:.0f} GiB" if size >= 10 << 30 else f"{size / 2**20:.0f} MiB"


def disks(config: Config) -> Iterator[Disk]:
    """Those of the tables and of Spark's checkpoints, where they are local; they may be one and the same."""
    for key, place in (("warehouse", config.warehouse), ("checkpoints", config.checkpoints)):
        if is_local(place):
            yield Disk.of(key, local_path(place))


def short(config: Config) -> str:
    """The disks on which there is so little room that landing waits, for people; empty when there is none."""
    return _listed(disk for disk in disks(config) if disk.is_short)


def full(config: Config) -> str:
    """The disks on which no query begins; empty when there is none."""
    return _listed(disk for disk in disks(config) if disk.is_full)


def with_room(reason: str, config: Config) -> str:
    """Why something failed; for lack of room, also how much each directory has that it may have been about."""
    if not any(each in reason for each in _FULL):
        return reason
    temporary = Disk.of("temporary files", Path(tempfile.gettempdir()))
    return f"{reason} ({_listed([*disks(config), temporary])}; {REMEDY})"


def _listed(found: Iterable[Disk]) -> str:
    return "; ".join(map(str, found))


def keep_ballast(config: Config) -> None:
    """Makes the ballast of a local warehouse, where there is none, or part of one, and plenty of room."""
    for disk in disks(config):
        file = disk.place / BALLAST
        there = file.stat().st_size if file.exists() else 0  # a kill while it is made leaves less
        if disk.key == "warehouse" and there < disk.least and disk.free > _PLENTY * disk.least:
            _allocate(file, disk.least)


def _allocate(file: Path, size: int) -> None:
    try:
        with file.open("wb") as made:
            os.posix_fallocate(made.fileno(), 0, size)
    except OSError:  # a file system that can't, or others that have taken the room meanwhile
        with suppress(OSError):
            file.unlink(missing_ok=True)


def free_ballast(config: Config) -> int:
    """Deletes the ballast; returns how many bytes it had, 0 where there was none."""
    size = 0
    for disk in disks(config):
        with suppress(FileNotFoundError):
            size += (file := disk.place / BALLAST).stat().st_size
            file.unlink()
    return size
