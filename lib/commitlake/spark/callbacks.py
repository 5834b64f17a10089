"""The Python function of a streaming query, held so that its object can be freed."""

from __future__ import annotations

from collections.abc import Callable
from traceback import clear_frames
from weakref import WeakMethod

from pyspark.sql import DataFrame


def held_weakly(method: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """A function that calls `method`, for as long as something else holds its object.

    Java holds the function of a query until it has collected the query, and the object holds Java's query. With the
    method itself neither would ever be freed, and each restart of all queries would leave another pair.
    """
    weak = WeakMethod(method)

    def call(frame: DataFrame, batch_id: int) -> None:
        if (found := weak()) is None:
            msg = f"batch {batch_id} came after the end of what it was for"
            raise RuntimeError(msg)
        try:
            found(frame, batch_id)
        except Exception as error:  # Spark keeps it with the function, and its frames hold the object
            clear_frames(error.__traceback__)
            raise
        finally:
            del found

    return call
