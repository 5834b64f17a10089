"""A disk that is full for a while: a tmpfs whose limit is lowered to what it holds; root only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

_SIZE = 4 << 30


class SmallDisk:
    """A directory on a tmpfs of its own; an ordinary directory where nothing can be mounted.

    Args:
        place: the directory.
        size: in bytes.
    """

    def __init__(self, place: Path, size: int = _SIZE) -> None:
        self.place, self.size, self.is_mounted = place, size, False

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        self.is_mounted = self._mount("-t", "tmpfs", "-o", f"size={self.size}", "campaign")
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.place)], check=False)

    @contextmanager
    def full(self) -> Iterator[None]:
        held = os.statvfs(self.place)
        used = (held.f_blocks - held.f_bfree) * held.f_frsize
        self._mount("-o", f"remount,size={used + 8_192}")
        try:
            yield
        finally:
            self.resize(self.size)

    def resize(self, size: int) -> None:
        self._mount("-o", f"remount,size={size}")

    def _mount(self, *arguments: str) -> bool:
        if os.geteuid() != 0:
            return False
        return subprocess.run(["mount", *arguments, str(self.place)], capture_output=True, check=False).returncode == 0
