"""The check of every append, where another coordinator may append too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from commitlake.tables.warehouse import Warehouse


class AppendGuard:
    """Checks every append of a `Warehouse`; this base class lets all pass, which is enough under a lock."""

    fences = False
    """Whether others may have appends in flight, which `fence` makes fail."""

    def rows(self, rows: DataFrame) -> DataFrame:
        """The rows that are appended instead of `rows`; a subclass adds its check to their plan."""
        return rows

    def check(self) -> None:
        """Called between the begin of a transaction and its commit; raises if it must not be committed."""

    def for_tables(self, warehouse: Warehouse) -> AppendGuard:
        """The same guard for the same tables in another session."""
        del warehouse
        return self

    def fence(self, topics: Iterable[str]) -> None:
        """Makes appends that others have in flight to these topic tables fail, before the tables are read."""
