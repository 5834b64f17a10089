"""The tables of a warehouse as views of an in-memory DuckDB, each at its newest version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from commitlake.config import Config
from commitlake.config.locations import has_scheme, not_there
from commitlake.errors import NoTableError, WarehouseError
from commitlake.protocol.clock import as_datetime
from commitlake.reading import damage, features
from commitlake.reading.catalog import described, location
from commitlake.reading.table import Options, Snapshot, Stream


class Tables:
    """Opens tables when they are needed."""

    def __init__(self, db: duckdb.DuckDBPyConnection, where: Config | str, options: Options = None) -> None:
        self.db, self._where, self._options = db, where, options
        self._open: dict[str, Snapshot] = {}

    def open(self, *names: str) -> None:
        """Make views of tables, under their names.

        On a local disk DuckDB reads the files itself, and skips row groups by their statistics and Bloom filters, some
        three times as fast as through Arrow, by which it reads object stores.

        Raises:
            NoTableError: one of them is not there.
            WarehouseError: one of them can't be read.
        """
        for name in names:
            if name not in self._open:
                found = self._snapshot(name)
                self._make(name, found)
                self._open[name] = found

    def topic(self, topic: str, needed: Collection[str] = ()) -> str | None:
        """Make a view of a topic's table, and return its name; None when there is no such table.

        Raises:
            WarehouseError: it can't be read, or lacks a column that is needed.
        """
        name = f"topics/{topic}"
        try:
            self.open(name)
        except NoTableError:
            return None
        features.refuse_columns(self._open[name].place, self._open[name].schema.names, needed)
        return quoted(name)

    def outside(self, place: str, columns: Collection[str] | None = None) -> str:
        """Make a view of a Delta table outside the warehouse, and return its name; only `columns` are needed of it."""
        name = f"outside {len(self._open)}"
        self._open[name] = Snapshot(place, self._options)
        self._make(name, self._open[name], columns)
        return quoted(name)

    def files(self, name: str) -> pa.Table:
        """The files of a table, with their statistics."""
        self.open(name)
        return self._open[name].files()

    def count(self, name: str) -> int:
        """How many rows a table has, by the statistics of its files."""
        self.open(name)
        found = pc.sum(self._open[name].files()["num_records"], min_count=0).as_py()
        return int(found) - sum(map(len, self._open[name].deleted().values()))

    def log_length(self, name: str) -> int:
        """How many files the log of a table has."""
        self.open(name)
        return self._open[name].log_length()

    def rows(self, sql: str, **parameters: object) -> pa.Table:
        """The rows of a query; parameters that it does not name are ignored."""
        with _explaining_files():
            return self.db.sql(sql, params=_named(sql, parameters) or None).to_arrow_table()

    def make(self, name: str, sql: str, **parameters: object) -> None:
        """Keep the rows of a query as a temporary table."""
        with _explaining_files():
            self.db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}", _named(sql, parameters))

    def greatest(self, name: str, column: str) -> Any:
        """The greatest value of a column, by the statistics of the files; None where there is none."""
        files = self.files(name)
        return pc.max(files[f"max.{column}"]).as_py() if f"max.{column}" in files.column_names else None

    def _snapshot(self, name: str) -> Snapshot:
        try:
            return Snapshot(*location(self._where, name, self._options))
        except NoTableError:
            has_url = isinstance(self._where, Config) and self._where.catalog.url
            warehouse = self._where if isinstance(self._where, str) else self._where.warehouse
            absent, check = not_there(warehouse), "`warehouse` and catalog.url" if has_url else "`warehouse`"
            none = f"no coordinator of this version has run on the warehouse {warehouse}: it has no table {name}"
            msg = f"warehouse: {absent}" if absent else f"{none}; start one, or check {check}"
            raise NoTableError(msg) from None

    def listed_topics(self) -> list[str]:
        """The topics that `destinations` lists."""
        self.open("destinations")
        found = self.rows("SELECT DISTINCT topic FROM destinations ORDER BY topic")
        return list(found["topic"].to_pylist())

    def of_topics(self, needed: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Each topic that `destinations` lists, and a view of its table.

        Raises:
            WarehouseError: one of them is not there, can't be read, or lacks a column that is needed.
        """
        for topic in self.listed_topics():
            view = self.topic(topic, needed)
            if view is None:
                raise WarehouseError(damage.of_topic(described(self._where, f"topics/{topic}")))
            yield topic, view

    def _make(self, name: str, table: Snapshot, columns: Collection[str] | None = None) -> None:
        empty = f"empty {name}"
        self.db.register(empty, table.schema.empty_table())
        sources = [f"SELECT * FROM {quoted(empty)}"]
        if has_scheme(table.place) or not table.is_plain() or _has_other_names(table):
            arrow = table.dataset() if table.is_plain() else Stream(table, columns)
            self.db.register(f"arrow {name}", arrow)
            sources = [f'SELECT * FROM "arrow {name}"']
        elif table.files().num_rows:
            rows, listed = _files(table, self.db.table(quoted(empty))), ", ".join(map(_typed, table.schema))
            joined = f"(SELECT * FROM {rows} UNION ALL BY NAME SELECT * FROM {quoted(empty)})"
            sources = [f"SELECT {listed} FROM {rows}", f"SELECT {listed} FROM {joined}"]
        with _explaining_files():
            self._first_that_binds(f"CREATE VIEW {quoted(name)} AS", sources)

    def _first_that_binds(self, statement: str, sources: Sequence[str]) -> None:
        """Only the second source reads a column that no file has yet; for all tables it would take twice as long."""
        try:
            self.db.execute(f"{statement} {sources[0]}")
        except duckdb.BinderException:
            self.db.execute(f"{statement} {sources[-1]}")


@contextmanager
def _explaining_files() -> Iterator[None]:
    """Reports an error of a file as damage; DuckDB reports it as an error of the query."""
    try:
        yield
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        first = str(error).splitlines()[0]
        if ".parquet" not in first:
            raise
        raise WarehouseError(damage.of_reading(first)) from error


@contextmanager
def opened(where: Config | str, options: Options = None) -> Iterator[Tables]:
    """Tables of a warehouse, by its configuration, or by its directory or URI; times are UTC."""
    with duckdb.connect(":memory:") as db:
        db.execute("SET TimeZone = 'UTC'")
        yield Tables(db, where, options)


def _has_other_names(table: Snapshot) -> bool:
    """Whether DuckDB would take a directory above a partitioned table, such as `state=raw`, for one of its columns."""
    return bool(table.partitions) and "=" in table.place


def _files(table: Snapshot, empty: duckdb.DuckDBPyRelation) -> str:
    """DuckDB's call that reads all files of a local table; `empty` has its types."""
    paths = [str(Path(table.place) / unquote(path)) for path in table.files()["path"].to_pylist()]
    listed = ", ".join(f"'{escaped(path)}'" for path in paths)
    kinds = dict(zip(empty.columns, map(_one_word, empty.types), strict=True))
    types = ", ".join(f"{quoted(name)}: {kinds[name]}" for name in table.partitions)
    hive = f", hive_partitioning = true, hive_types = {{{types}}}" if types else ", hive_partitioning = false"
    return f"read_parquet([{listed}], union_by_name = true{hive})"


HAS_KEY = "list_contains(string_split(keys, ' '), $keys)"
"""SQL: whether the business keys of a message, which spaces separate, have the parameter `keys` among them."""


def moment(at_ms: int) -> str:
    """SQL of a moment, from ms since epoch, UTC."""
    return f"TIMESTAMPTZ '{as_datetime(at_ms).isoformat(timespec='milliseconds')}'"


def iso(column: str) -> str:
    """SQL of a time as text in ISO 8601, UTC, with ms."""
    return f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%gZ')"


def epoch_ms(at: datetime) -> int:
    """Ms since epoch, UTC."""
    return int(at.timestamp() * 1_000)


_TIMESTAMP = pa.timestamp("us", "UTC")


def _one_word(kind: object) -> str:
    """The type of a partition column as one word: DuckDB accepts no other there."""
    return "VARCHAR" if "(" in str(kind) else str(kind).replace(" WITH TIME ZONE", "TZ")


def _typed(field: pa.Field) -> str:
    """A column as SQL; DuckDB reads the timestamps that Spark writes by default as ones without a zone."""
    name, kind = quoted(field.name), field.type
    if pa.types.is_decimal(kind):
        return f"{name}::DECIMAL({kind.precision}, {kind.scale}) AS {name}"
    return f"{name}::TIMESTAMPTZ AS {name}" if kind == _TIMESTAMP else name


def _named(sql: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """The parameters that the query names: DuckDB rejects others."""
    return {name: value for name, value in parameters.items() if f"${name}" in sql}


def quoted(name: str) -> str:
    """A name as SQL, of DuckDB and of PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def escaped(text: str) -> str:
    """A text between single quotes of SQL."""
    return text.replace("'", "''")
