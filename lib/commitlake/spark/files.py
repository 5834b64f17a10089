"""Small files and directories of any file system that Spark reaches, through Hadoop; in a volume, through Python."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from commitlake.config import databricks
from commitlake.spark.jvm import hadoop, java


class FileSystem:
    """The file system of a place, a plain path or a URI."""

    def __new__(cls, spark: SparkSession, place: str) -> Self:
        """A `_Volume` for a place in one: there Hadoop's calls have Spark's rights only within a query."""
        del spark
        kind: Any = _Volume if databricks.volume(place) else cls
        made: Self = super().__new__(kind)
        return made

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._new_path, self._utils = (java(spark, f"org.apache.hadoop.{name}") for name in ("fs.Path", "io.IOUtils"))
        self._root = place.rstrip("/")
        self._system = self._path("").getFileSystem(hadoop(spark))

    def _path(self, name: str) -> Any:
        return self._new_path(f"{self._root}/{name}".rstrip("/"))

    def directories(self, name: str) -> list[str]:
        """Names of the directories in a directory; none where there is no such directory."""
        return [status.getPath().getName() for status in self._statuses(name) if status.isDirectory()]

    def names(self, name: str) -> list[str]:
        """Names of the files and directories in a directory; none where there is no such directory."""
        return [status.getPath().getName() for status in self._statuses(name)]

    def _statuses(self, name: str) -> list[Any]:
        path, system = self._path(name), self._unchecked()
        return list(system.listStatus(path)) if system.exists(path) else []

    def _unchecked(self) -> Any:
        """Shows checksum files, too, which Hadoop's local file system hides."""
        return self._system.getRawFileSystem() if self._system.getScheme() == "file" else self._system

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a small file; replaces one that exists."""
        stream = self._system.create(self._path(name), True)
        try:
            stream.write(bytearray(content.encode() if isinstance(content, str) else content))
        finally:
            stream.close()

    def read(self, name: str) -> str | None:
        """The text of a small file, None where there is none."""
        try:
            stream = self._system.open(self._path(name))
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception):
                return None
            raise
        try:
            return bytes(self._utils.readFullyToByteArray(stream)).decode()
        finally:
            stream.close()

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory."""
        return bool(self._system.exists(self._path(name)))

    def has_in_other_letters(self, folder: str, name: str) -> bool:
        """Whether a directory has this name in other letters only, on a file system that ignores case."""
        return self.exists(f"{folder}/{name}") and name not in self.names(folder)

    def delete(self, name: str) -> None:
        """Deletes a file, or a directory with all its content, if it exists."""
        self._system.delete(self._path(name), True)

    def delete_alone(self, name: str) -> None:
        """Deletes a file or an empty directory, if it exists; any other directory stays."""
        with suppress(Py4JJavaError):
            self._unchecked().delete(self._path(name), False)


class _Volume(FileSystem):
    """The same in a volume of Databricks, whose files Python reads and writes whole, without a rename or an append."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        del spark
        self._folder = databricks.volume(place) or Path(place)

    def directories(self, name: str) -> list[str]:
        return [each for each in self.names(name) if (self._folder / name / each).is_dir()]

    def names(self, name: str) -> list[str]:
        folder = self._folder / name
        return [each.name for each in folder.iterdir()] if folder.exists() else []

    def write(self, name: str, content: str | bytes) -> None:
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_bytes().decode()
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def delete(self, name: str) -> None:
        found = self._folder / name
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            found.unlink(missing_ok=True)

    def delete_alone(self, name: str) -> None:
        found = self._folder / name
        with suppress(OSError):
            found.rmdir() if found.is_dir() else found.unlink()
