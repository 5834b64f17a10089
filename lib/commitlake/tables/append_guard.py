"""What stands before every append, where another coordinator may append too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from commitlake.tables.warehouse import Warehouse


class AppendGuard:
    """Stands before every append of a `Warehouse`; this one lets all pass, which is enough under a lock."""

    fences = False
    """Whether others may have appends under way, which `fence` ends."""

    def rows(self, rows: DataFrame) -> DataFrame:
        """What is appended instead of `rows`."""
        return rows

    def check(self) -> None:
        """Looks before a commit, and after its begin, whether it may be made; raises where it may not."""

    def for_tables(self, warehouse: Warehouse) -> AppendGuard:
        """The same guard for the same tables in another session."""
        del warehouse
        return self

    def fence(self, topics: Iterable[str]) -> None:
        """Ends appends that others have under way to these topic tables, before what they hold is read."""
