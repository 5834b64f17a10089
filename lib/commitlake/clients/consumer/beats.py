"""Signs of life of a group's instances: each rewrites a small file of its own.

Rows of a table would not do: idle instances would each commit, and race for the next version of the log. With 50
instances, each with a commit each 3 s, a sync took 12 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from commitlake.config.locations import is_local, local_path
from commitlake.config.object_store import storage_options
from commitlake.reading.table import Options

_FOLDER = "_beats"
"""The folder below a table; a vacuum skips names that begin with `_`."""
Beat = tuple[int, int]
"""The time when the file was written, in ns by the store's clock, and its size; compared only with earlier ones."""


class Beats:
    """The signs of life in one group."""

    def __init__(self, place: str, options: Options = None) -> None:
        self._local = local_path(place) / _FOLDER if is_local(place) else None
        self._remote = None if self._local else DeltaStorageHandler(place, storage_options(options))
        self._count = 0

    def show(self, name: str) -> None:
        """Show that an instance lives.

        Raises:
            OSError: the file can't be written.
        """
        self._count += 1
        content = b"." * (self._count % 8 + 1)  # a new size each time: object stores give times in whole seconds
        if self._local is not None:
            self._local.mkdir(exist_ok=True)  # not its parents, which would hide that a store is not mounted
            Path(self._local, name).write_bytes(content)
        elif self._remote is not None:
            # pyarrow's wrapper would pass a Buffer, which this deltalake refuses.
            stream: Any = self._remote._handler.open_output_stream(f"{_FOLDER}/{name}", None)
            stream.write(content)
            stream.close()

    def seen(self) -> dict[str, Beat]:
        """The beats, by instance.

        Raises:
            OSError: the store can't be read.
        """
        if self._local is not None:
            folder, files = str(self._local), fs.LocalFileSystem()
        else:
            folder, files = _FOLDER, fs.PyFileSystem(self._remote)
        found = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return {info.base_name: (info.mtime_ns, info.size) for info in found}

    def end(self, name: str) -> None:
        """Remove the file of an instance."""
        if self._local is not None:
            Path(self._local, name).unlink(missing_ok=True)
        elif self._remote is not None and name in self.seen():
            self._remote.delete_file(f"{_FOLDER}/{name}")
