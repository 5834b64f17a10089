"""What keeps the appends of several coordinators apart."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession


class AppendGuard:
    """Stands before every append of a `Warehouse`; this one lets all pass, which is enough under a lock."""

    fences = False
    """Whether others may have appends under way, which `fence` ends."""

    def rows(self, rows: DataFrame) -> DataFrame:
        """What is appended instead of `rows`."""
        return rows

    def beside(self, spark: SparkSession) -> AppendGuard:
        """The same guard for another session."""
        del spark
        return self

    def fence(self, topics: Iterable[str]) -> None:
        """Ends appends that others have under way to these topic tables, before what they hold is read."""
