"""Signs of life of a group's instances: a small file for each, which it writes again and again.

They are no rows of a table: instances that have nothing to do would make a commit each, and race for the next version
of the log. 50 of them, each with a commit each 3 s, let a turn take 12 s.
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
"""Below a table; what removes its unused files skips names that begin so."""
Beat = tuple[int, int]
"""When the file was written, in ns by the clock of the store, and its size: compared with an earlier one only."""


class Beats:
    """The signs of life in one group.

    Args:
        place: of the group's table.
        options: deltalake's `storage_options`.
    """

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
        content = b"." * (self._count % 8 + 1)  # object stores tell times in whole seconds
        if self._local is not None:
            self._local.mkdir(exist_ok=True)  # not its parents: a store that is away shall not come to be here
            Path(self._local, name).write_bytes(content)
        elif self._remote is not None:
            # pyarrow's wrapper hands over a Buffer, which this deltalake refuses.
            stream: Any = self._remote._handler.open_output_stream(f"{_FOLDER}/{name}", None)
            stream.write(content)
            stream.close()

    def seen(self) -> dict[str, Beat]:
        """The beat of each instance.

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
        """Remove what shows that an instance lives."""
        if self._local is not None:
            Path(self._local, name).unlink(missing_ok=True)
        elif self._remote is not None and name in self.seen():
            self._remote.delete_file(f"{_FOLDER}/{name}")
