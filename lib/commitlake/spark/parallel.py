"""Several Spark jobs side by side, from one thread that waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

_THREADS = 4  # more only wait for the driver on small machines


def run_all(spark: SparkSession, tasks: Iterable[Callable[[], object]]) -> None:
    """Runs all tasks and returns when the last one has ended, also when one fails; raises the first failure.

    The threads have the caller's job group, so that the stop of its query ends their jobs too.
    """
    waiting = list(tasks)
    if len(waiting) <= 1:
        for task in waiting:
            task()
        return
    inherit = inheritable_thread_target(spark)
    with ThreadPoolExecutor(_THREADS) as pool:
        running = [pool.submit(inherit(task)) for task in waiting]
        wait(running)
    for each in running:
        each.result()
