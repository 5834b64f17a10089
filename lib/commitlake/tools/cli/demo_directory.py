"""The demo in a directory that is fresh, and locked while the demo runs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commitlake.coordinator.recovery.fencing import WarehouseLock
from commitlake.errors import WarehouseError
from commitlake.kafka import parent_watch
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import given, process, runtime, session

_COMMITLAKE = (sys.executable, "-P", "-m", "commitlake.tools.cli")
_ENDS_WITH_THIS_PROCESS = (sys.executable, parent_watch.__file__, "60")
DATABASES = ("points", "logistics", "orders")  # that of the orders is removed last: it shows that a demo was here


@contextmanager
def fresh(place: Path) -> Iterator[dict[str, object]]:
    """Remove what an earlier demo left in `place`, and nothing else; yield the keys of a configuration that use it.

    Raises:
        FencedError: a demo runs there, or another coordinator on its warehouse.
        WarehouseError: there is a warehouse that no demo made.
    """
    with WarehouseLock(str(place)):
        # orders.db is removed last and made before the warehouse, so it exists whenever the warehouse is a demo's.
        if (place / "warehouse").exists() and not (place / "orders.db").exists():
            msg = f"{place} holds a warehouse that is not of a demo; choose another directory with --dir"
            raise WarehouseError(msg)
        if (place / "warehouse").exists():
            with WarehouseLock(str(place / "warehouse")):  # the JVM of a killed demo may still write there
                shutil.rmtree(place / "warehouse", ignore_errors=True)
        for name in ("warehouse_receipts", "checkpoints"):
            shutil.rmtree(place / name, ignore_errors=True)
        for database in (path for name in DATABASES for path in place.glob(f"{name}.db*")):
            database.unlink()
        yield {"warehouse": str(place / "warehouse"), "checkpoints": str(place / "checkpoints")}


def play(place: Path, master: str, *, is_opened: bool) -> int:
    """Play the demo; 1 when something differs at its end. With `is_opened` a browser opens its report then.

    Raises:
        CommitLakeError: something does not start or fails on the way.
    """
    from commitlake.tools.demo import run as story  # its services are consumers, an extra that no other command needs

    with process.exit_on_signals(process.STOPPED), fresh(place) as directories:
        os.environ.pop("PYSPARK_GATEWAY_PORT", None)  # of spark-submit; the coordinator is another driver
        os.environ["MASTER"] = master
        name = "spark.driver.extraJavaOptions"
        quick = {name: session.submit_settings(master, short_lived=True)[name]}
        words = given.arguments(quick, given.from_environment(), runtime.spark_home())
        os.environ[given.VARIABLE] = shlex.join(words)
        coordinator, report = (*_ENDS_WITH_THIS_PROCESS, *_COMMITLAKE, "run"), (*_COMMITLAKE, "report", "--since=1h")
        columns = process.terminal_columns()
        return story.run(place, directories, EmbeddedBroker(), coordinator, report, columns, is_opened=is_opened)
