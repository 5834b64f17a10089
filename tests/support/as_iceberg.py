"""Topics as Iceberg tables: the command's runs, and what a reader of Iceberg finds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from typer.testing import CliRunner

from commitlake.tools.cli.app import app


class AsIceberg:
    """A catalog in a file of SQLite, over the topics of a warehouse."""

    def __init__(self, warehouse: Path, place: Path) -> None:
        self.warehouse, self.uri = warehouse, f"sqlite:///{place}/catalog.db"

    def run(self, *words: str, code: int = 0) -> str:
        """Runs the command; returns what it prints."""
        given = [f"--catalog={self.uri}", f"--set=warehouse={self.warehouse}", *words]
        done = CliRunner().invoke(app, ["iceberg", *given])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    def table(self, topic: str = "orders") -> Table:
        return load_catalog("commitlake", uri=self.uri).load_table(f"commitlake.{topic}")

    def rows(self, topic: str = "orders", **scan: Any) -> list[dict[str, Any]]:
        return in_order(self.table(topic).scan(**scan).to_arrow())

    def delta_rows(self, topic: str = "orders") -> list[dict[str, Any]]:
        return in_order(DeltaTable(f"{self.warehouse}/topics/{topic}").to_pyarrow_table())

    def files(self, topic: str = "orders") -> set[str]:
        return {task.file.file_path.removeprefix("file://") for task in self.table(topic).scan().plan_files()}

    def delta_files(self, topic: str = "orders") -> set[str]:
        return set(DeltaTable(f"{self.warehouse}/topics/{topic}").file_uris())


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Rows by message, their columns by name."""
    rows: Iterable[dict[str, Any]] = table.select(sorted(table.column_names)).to_pylist()
    return sorted(rows, key=lambda row: str(row["message_id"]))
