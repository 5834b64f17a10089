"""Filters of a group's messages, as in RocketMQ: a tag expression, and an SQL condition on properties.

Names in a condition are names of properties. `TAGS` and `KEYS` mean the columns; `"tags"`, in double quotes, means a
property. All values are texts. A value that is compared with a number counts as a number; one that is compared with
TRUE or FALSE, or stands alone, counts as a boolean. A message whose value is missing, or can't be converted, is not
wanted. `value.amount` means a field of the column `value`, which has a type of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from commitlake.clients.consumer.arguments import Tags, tags_of
from commitlake.errors import ArgumentError

log = logging.getLogger(__name__)

_COLUMNS, _VALUE = ("tags", "keys"), "value"
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)
_NODES = (
    *(*_COMPARED, exp.Like, exp.Is, exp.And, exp.Or, exp.Not, exp.Paren, exp.Neg),
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null),
)
_TEXTS = pa.map_(pa.string(), pa.string())
_TRIED = (None, "x", "1", "true")
"""Values with which a condition is tried first: a condition that fails ends a consumer before it has a message."""
_ALLOWED = "comparisons, BETWEEN, IN, LIKE and IS NULL of properties and of fields of value, joined by AND, OR and NOT"
_WORDS = {"AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "BETWEEN", "TRUE", "FALSE", "ESCAPE"}
_EXACT, _EXACT_TO = 1 << 53, 10**29
"""Between these bounds whole numbers are compared as decimals of 38 digits: not all of them are exact doubles."""


class Filter:
    """Keeps the rows that a group wants: with one of its tags, and for which the SQL condition `where` holds.

    Raises:
        ArgumentError: The tags are not tags, or the condition can't be used.
    """

    def __init__(self, tags: Tags | None, where: str | None) -> None:
        self._tags = tags_of(tags)
        self._given, self._where, self._has_fields = where, None if where is None else condition_sql(where), False
        if where is not None:
            self._has_fields = bool(_fields(_parsed(where)))
            self._duckdb = duckdb.connect(":memory:", config={"threads": 1})
            self._duckdb.execute("SET TimeZone = 'UTC'")  # of a text that is compared with a time
            self._fits(_tried(where))

    def columns(self, there: Collection[str]) -> tuple[str, ...]:
        """The columns that the condition is over, of a topic's table that has the columns `there`.

        Raises:
            ArgumentError: it asks for fields of `value`, and the table has no such column.
        """
        if self._has_fields and _VALUE not in there:
            msg = f"where: {self._given!r} names fields of value, and the topic has no schema; see topics.schemas"
            raise ArgumentError(msg)
        return (*_COLUMNS, "properties", *([_VALUE] if self._has_fields else []))

    def keep(self, rows: pa.Table) -> pa.Table:
        """The wanted rows, in the same order.

        Raises:
            ArgumentError: the condition can't be used.
        """
        if self._tags is not None:
            rows = rows.filter(pc.is_in(rows["tags"], pa.array(self._tags, pa.string())))
        return rows if self._where is None else rows.filter(self._fits(rows))

    def _fits(self, rows: pa.Table) -> pa.ChunkedArray:
        self._duckdb.register("messages", rows.select(self.columns(rows.column_names)))
        try:
            found = self._duckdb.sql(f"SELECT ({self._where}) AS fits FROM messages").to_arrow_table()["fits"]
        except duckdb.Error as error:  # for example, there is no such field
            told = str(error).splitlines()[0]
            msg = f"where: {self._given!r} can't be used: {told}; allowed are {_ALLOWED}"
            raise ArgumentError(msg) from error
        if found.type != pa.bool_():
            msg = f"where: {self._given!r} is a value and no condition; allowed are {_ALLOWED}"
            raise ArgumentError(msg)
        return pc.fill_null(found, False)


def condition_sql(where: str) -> str:
    """The condition in DuckDB's SQL, over the columns tags, keys, properties and value.

    Raises:
        ArgumentError: The text is no condition.
    """
    try:
        tree = _parsed(where)
        if not all(isinstance(node, _NODES) for node in tree.walk()):
            msg = f"where: {where!r} is not a condition{_reserved(where)}; allowed are {_ALLOWED}"
            raise ArgumentError(msg)
        for column in tree.find_all(exp.Column):
            _check_name(where, column)
        return tree.transform(_look_up).sql(dialect="duckdb")
    except RecursionError as error:
        msg = f"where: {where!r:.100}, of {len(where)} characters, is too deep; use fewer parentheses, NOT and AND"
        raise ArgumentError(msg) from error


def _is_field(column: exp.Column) -> bool:
    return len(column.parts) > 1 and column.parts[0].name.lower() == _VALUE


def _fields(tree: exp.Expr) -> list[list[str]]:
    """Paths of the fields of `value`, below it."""
    return [
        [part.name.lower() for part in column.parts[1:]] for column in tree.find_all(exp.Column) if _is_field(column)
    ]


def _check_name(where: str, column: exp.Column) -> None:
    if _is_field(column):
        return
    if len(column.parts) > 1:
        name = ".".join(part.name for part in column.parts)
        msg = f'where: {where!r} has a name with a dot; write it as "{name}", in double quotes'
        raise ArgumentError(msg)
    compared = _unwrapped(column)
    first = compared.this.unnest() if isinstance(compared, (*_COMPARED, exp.Like)) else column
    if first is column or not isinstance(first, exp.Column):
        return
    if column.this.quoted:
        text = exp.Literal.string(column.name).sql()
        msg = (
            f"where: {where!r} compares with the property {column.sql()}, since a text stands in single quotes: {text}"
        )
        raise ArgumentError(msg)
    log.warning("where: %r compares the properties %s and %s; a text stands in single quotes", where, first, column)


def _unwrapped(node: exp.Expr) -> exp.Expr | None:
    """The expression that a name is part of, without parentheses."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return parent


def _parsed(where: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(where, dialect="duckdb")
    except (SqlglotError, TypeError, AttributeError) as error:  # the last two if `where` is no text
        told = str(error).splitlines()[0]
        msg = f"where: {where!r} can't be read: {told}{_reserved(where)}; allowed are {_ALLOWED}"
        raise ArgumentError(msg) from error


def _reserved(where: str) -> str:
    """A hint that names SQL words which may be meant as names of properties; empty without any."""
    try:
        tokens = sqlglot.tokenize(where, dialect="duckdb")
    except (SqlglotError, TypeError, AttributeError):
        return ""
    words = [each.text for each in tokens if each.token_type.name not in ("VAR", "STRING", "NUMBER", "IDENTIFIER")]
    names = [f'"{word}"' for word in words if word.isidentifier() and word.upper() not in _WORDS]
    return f"; a property whose name is a word of SQL stands in double quotes: {', '.join(names)}" if names else ""


def _tried(where: str) -> pa.Table:
    """A message for each value of `_TRIED`, which all its columns and properties have; its fields are null."""
    tree = _parsed(where)
    names = {node.name for node in tree.find_all(exp.Column)}
    properties = [[(name, value) for name in names if value is not None] for value in _TRIED]
    texts, fields = pa.array(_TRIED, pa.string()), _fields(tree)
    more = {_VALUE: pa.nulls(len(_TRIED), _struct(fields))} if fields else {}
    return pa.table({"tags": texts, "keys": texts, "properties": pa.array(properties, _TEXTS), **more})


def _struct(paths: Sequence[Sequence[str]]) -> pa.DataType:
    """A type that has these paths, each to a text."""
    below: dict[str, list[Sequence[str]]] = {}
    for first, *rest in paths:
        below.setdefault(first, []).extend([rest] if rest else [])
    return pa.struct([(name, _struct(rest) if rest else pa.string()) for name, rest in below.items()])


def _look_up(node: exp.Expression) -> exp.Expression:
    if not isinstance(node, exp.Column):
        return node
    is_column = node.name.lower() in _COLUMNS and (not node.this.quoted or node.name.isupper())
    value: exp.Expression = exp.column(node.name.lower())
    if _is_field(node):
        value = exp.column(_VALUE)
        for part in node.parts[1:]:
            value = _called("struct_extract", value, part.name)
    elif not is_column:
        value = _called("map_extract_value", exp.column("properties"), node.name)
    kind = _kind_beside(node)
    return exp.TryCast(this=value, to=exp.DataType.build(kind)) if kind else value


def _called(function: str, of: exp.Expression, name: str) -> exp.Expression:
    return exp.Anonymous(this=function, expressions=[of, exp.Literal.string(name)])


def _kind_beside(column: exp.Expression) -> str | None:
    """The type to which a name's value is cast: that of the constants beside it, None for texts; BOOLEAN if alone."""
    compared = _unwrapped(column)
    if compared is None or isinstance(compared, (exp.And, exp.Or, exp.Not)):
        return "BOOLEAN"
    if not isinstance(compared, (*_COMPARED, exp.Is)):
        return None
    if compared.find(exp.Boolean):
        return "BOOLEAN"
    numbers = [Decimal(other.name) for other in compared.find_all(exp.Literal) if not other.is_string]
    if any(_EXACT <= abs(number) < _EXACT_TO for number in numbers):
        return "DECIMAL(38, 9)"
    return "DOUBLE" if numbers else None
