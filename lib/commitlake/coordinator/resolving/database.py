"""Questions to PostgreSQL about due transactions: matching rows of a table, and the ends of its own transactions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pyarrow as pa
from adbc_driver_manager.dbapi import Connection, Error
from adbc_driver_postgresql import dbapi

from commitlake.config.secret_references import resolve
from commitlake.coordinator.resolving.rules import CheckRule
from commitlake.errors import ConfigError, DatabaseError
from commitlake.protocol.postgresql import Answer, answer_of, question
from commitlake.reading.questions.tables import escaped, quoted

_DUE = "commitlake_due"
_TYPES = """
SELECT a.attname, t.typname, t.typcategory::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = '{table}'::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
_PLAIN = "NSBD"
"""Categories of types that Arrow has too: numbers, texts, booleans, times. Others, such as an enum, become texts."""


def matched(rule: CheckRule, due: pa.Table) -> pa.Table:
    """The rows of the rule's table that match a due key, with the columns that the rule names.

    Args:
        rule: a rule of a PostgreSQL table.
        due: columns k0, k1, ...: the left sides of `rule.match`.

    Raises:
        ConfigError: there is no such table or column.
        DatabaseError: the database refuses, or is out of reach.
    """
    with _connected(rule, rule.table) as connection:
        return _join(connection, rule, dict(parse_qsl(urlsplit(rule.table).query))["table"], due)


def answers(rule: CheckRule, xids: Iterable[int]) -> dict[int, Answer]:
    """The answers of the rule's database about its transactions, by xid.

    Raises:
        DatabaseError: the database refuses, or is out of reach.
    """
    with _connected(rule, rule.database) as connection, connection.cursor() as cursor:
        found = [answer_of(*row) for row in _rows(cursor, question(xids))]
    return {each.xid: each for each in found}


_PATIENCE = {"connect_timeout": "10", "options": "-c statement_timeout=60000 -c lock_timeout=10000"}
"""In s, and in ms: a silent host, or a table that somebody has locked, is reported and tried again."""


@contextmanager
def _connected(rule: CheckRule, address: str) -> Iterator[Connection]:
    url = urlsplit(address)
    options = dict(parse_qsl(url.query))
    options.pop("table", None)
    uri = urlunsplit(url._replace(query=urlencode({**_PATIENCE, **options, **_login(rule)}, quote_via=quote)))
    try:
        with dbapi.connect(uri) as connection:
            yield connection
    except Error as error:
        msg = f"checks.{rule.group}: {_reason(error)}; check {url.scheme}://{url.netloc}{url.path}, its table and user"
        raise DatabaseError(msg) from None  # the chain shows the password


def _login(rule: CheckRule) -> dict[str, str]:
    name = f"checks.{rule.group}"
    given = {"user": rule.user, "password": rule.password}
    return {key: resolve(f"{name}.{key}", value) for key, value in given.items() if value is not None}


def _join(connection: Connection, rule: CheckRule, table: str, due: pa.Table) -> pa.Table:
    with connection.cursor() as cursor:
        types = {name: (kind, category) for name, kind, category in _rows(cursor, _TYPES.format(table=escaped(table)))}
        wanted = sorted({*rule.columns, *(right for _, right in rule.match)})
        missing = [name for name in wanted if name not in types]
        if missing:
            msg = f"checks.{rule.group}: {table} has no column {missing[0]}; it has {', '.join(sorted(types))}"
            raise ConfigError(msg)
        cursor.adbc_ingest(_DUE, due, mode="create", temporary=True)
        on = " AND ".join(f"b.{quoted(right)}::text = d.k{number}" for number, (_, right) in enumerate(rule.match))
        columns = ", ".join(_read(name, *types[name]) for name in wanted)
        cursor.execute(f"ANALYZE {_DUE}")
        cursor.execute(f"SELECT DISTINCT {columns} FROM {table} b JOIN {_DUE} d ON {on}")
        return cursor.fetch_arrow_table()


def _rows(cursor: Any, sql: str) -> list[tuple[Any, ...]]:
    cursor.execute(sql)
    return list(cursor.fetchall())


def _read(name: str, kind: str, category: str) -> str:
    cast = "::double precision" if kind == "numeric" else "" if category in _PLAIN else "::text"
    return f"b.{quoted(name)}{cast} AS {quoted(name)}"


def _reason(error: Error) -> str:
    return re.sub(r"\s+", " ", str(error).partition("Query was:")[0])[:200].strip()
