"""Delta tables as any reader sees them, by deltalake, so that no test depends on Spark's view of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from commitlake.config.object_store import storage_options


def opened(warehouse: str | Path, name: str) -> DeltaTable | None:
    """A table by its path in the warehouse; None until it has its first commit.

    Its directory is there a little earlier: a reader that looks for the directory may find a table without a log.
    """
    place = f"{warehouse}/{name}"
    options = storage_options()
    return DeltaTable(place, storage_options=options) if DeltaTable.is_deltatable(place, options) else None


def rows(warehouse: str | Path, name: str) -> list[dict[str, Any]]:
    table = opened(warehouse, name)
    found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist() if table else []
    return found


def count(warehouse: str | Path, name: str) -> int:
    table = opened(warehouse, name)
    return table.count() if table else 0


def topics(warehouse: str | Path) -> list[str]:
    """The names on disk of the topics that have a table."""
    if "://" in str(warehouse):
        return sorted(row["table"].removeprefix("topics/") for row in rows(warehouse, "destinations"))
    below = Path(warehouse) / "topics"
    return sorted(path.name for path in below.glob("*") if opened(warehouse, f"topics/{path.name}"))
