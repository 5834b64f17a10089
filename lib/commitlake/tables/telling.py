"""What is told where a table can't be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from commitlake.errors import WarehouseError, root_reason

_T = TypeVar("_T")


def telling(place: str, write: Callable[[], _T]) -> _T:
    """Writes to a table.

    Args:
        place: of the table.
        write: does it.

    Raises:
        WarehouseError: that failed; it names the table.
    """
    try:
        return write()
    except Exception as error:
        message = (
            f"cannot write to the table at {place}: {root_reason(error)}; fix the cause and start again: nothing "
            "is lost, the next start goes on from the tables"
        )
        raise WarehouseError(message) from error
