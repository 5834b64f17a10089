"""Lands what Kafka holds and kills itself with SIGKILL at one of its commits; run by test_landing_recovery."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from commitlake import config
from commitlake.landing.query import Landing
from commitlake.spark import session
from commitlake.tables import Warehouse


def kill_at(commit: int, moment: str) -> None:
    """Make the warehouse kill this process right before or after its `commit`-th append."""
    lock, seen = threading.Lock(), iter(range(1, 1_000))

    def wrap(append: Callable[..., None]) -> Callable[..., None]:
        def killing(*args: Any, **options: Any) -> None:
            with lock:
                mine = next(seen) == commit
                if mine and moment == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                append(*args, **options)
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)

        return killing

    Warehouse.append = wrap(Warehouse.append)  # type: ignore[method-assign]
    Warehouse.append_topic = wrap(Warehouse.append_topic)  # type: ignore[method-assign]


if __name__ == "__main__":
    settings = config.from_mapping(json.loads(sys.argv[1]))
    spark = session.build(settings, master="local[2]", short_lived=True)
    warehouse = Warehouse(spark, settings.warehouse)
    warehouse.create()
    kill_at(int(sys.argv[2]), sys.argv[3])
    Landing(spark, settings, warehouse).start(available_now=True).awaitTermination()
