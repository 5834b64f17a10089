"""What a streaming query calls in Python, without keeping alive what it is part of."""

from __future__ import annotations

from collections.abc import Callable
from traceback import clear_frames
from weakref import WeakMethod

from pyspark.sql import DataFrame


def held_weakly(method: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """The same method, for as long as something else holds its object.

    Java keeps what a query calls until it has collected the query, and the object keeps Java's query: neither would
    ever go, and with each restart of all queries there would be another.
    """
    weak = WeakMethod(method)

    def call(frame: DataFrame, batch_id: int) -> None:
        if (found := weak()) is None:
            msg = f"batch {batch_id} came after the end of what it was for"
            raise RuntimeError(msg)
        try:
            found(frame, batch_id)
        except Exception as error:  # which Spark keeps with the function, and its frames name the object
            clear_frames(error.__traceback__)
            raise
        finally:
            del found

    return call
