"""The demo's directory: its own while it runs, and fresh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlake.coordinator.recovery.fencing import WarehouseLock
from commitlake.errors import WarehouseError

DATABASES = ("points", "logistics", "orders")  # that of the orders goes last: it tells that a demo was here


@contextmanager
def fresh(place: Path) -> Iterator[dict[str, object]]:
    """Remove what an earlier demo left in `place`, and nothing else; yield the keys of a configuration that use it.

    Raises:
        FencedError: a demo runs there, or another coordinator on its warehouse.
        WarehouseError: there is a warehouse that no demo made.
    """
    with WarehouseLock(str(place)):
        # Removed last and made before the warehouse, so it is there whenever the warehouse is a demo's.
        if (place / "warehouse").exists() and not (place / "orders.db").exists():
            msg = f"{place} holds a warehouse that is not of a demo; choose another directory with --dir"
            raise WarehouseError(msg)
        if (place / "warehouse").exists():
            with WarehouseLock(str(place / "warehouse")):  # the JVM of a demo that was killed may write there yet
                shutil.rmtree(place / "warehouse", ignore_errors=True)
        for name in ("warehouse_receipts", "checkpoints"):
            shutil.rmtree(place / name, ignore_errors=True)
        for database in (path for name in DATABASES for path in place.glob(f"{name}.db*")):
            database.unlink()
        yield {"warehouse": str(place / "warehouse"), "checkpoints": str(place / "checkpoints")}
