"""Several Spark jobs side by side, from one thread that waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

_T = TypeVar("_T")
_THREADS = 4  # more only wait for the driver on small machines


def run_all(spark: SparkSession, tasks: Iterable[Callable[[], _T]]) -> list[_T]:
    """Runs all tasks, and returns their results when the last one has ended; raises the first failure then.

    The threads have the caller's job group, so that the stop of its query ends their jobs too.
    """
    waiting = list(tasks)
    if len(waiting) <= 1:
        return [task() for task in waiting]
    inherit = inheritable_thread_target(spark)
    with ThreadPoolExecutor(_THREADS) as pool:
        running = [pool.submit(inherit(task)) for task in waiting]
        wait(running)
    return [each.result() for each in running]
