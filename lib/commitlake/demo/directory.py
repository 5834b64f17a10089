"""The demo's directory: its own while it runs, and fresh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlake.recovery.fencing import WarehouseLock


@contextmanager
def fresh(place: Path) -> Iterator[dict[str, object]]:
    """Remove what an earlier demo left in `place`, and nothing else; yield the keys of a configuration that use it.

    Raises:
        FencedError: a demo runs there.
    """
    with WarehouseLock(str(place)):
        for name in ("warehouse", "checkpoints", "points-checkpoint"):
            shutil.rmtree(place / name, ignore_errors=True)
        for database in (*place.glob("orders.db*"), *place.glob("points.db*")):
            database.unlink()
        yield {"warehouse": str(place / "warehouse"), "checkpoints": str(place / "checkpoints")}
