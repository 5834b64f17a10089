"""Which messages a group wants, as RocketMQ has it: a tag expression, and an SQL condition on properties.

Names in a condition are those of properties; `TAGS` and `KEYS` are columns. All of them are texts: beside a number one
counts as that, beside TRUE or FALSE or alone likewise, and where it is none, or not there, the message is not wanted.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from commitlake.clients.consumer.tags import tags_of
from commitlake.errors import ConsumerError

_COLUMNS = ("tags", "keys")
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)
_NODES = (
    *(*_COMPARED, exp.Like, exp.Is, exp.And, exp.Or, exp.Not, exp.Paren, exp.Neg),
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null),
)
_TEXTS = pa.map_(pa.string(), pa.string())
_TRIED = (None, "x", "1", "true")
"""Values with which a condition is tried first: what can't be used ends a consumer before it has a message."""
_ALLOWED = "comparisons, BETWEEN, IN, LIKE and IS NULL of properties, joined by AND, OR and NOT"


class Filter:
    """Keeps the rows that a group wants.

    Args:
        tags: Tags joined by `||`; None or `*` for all.
        where: An SQL condition; None for all.

    Raises:
        ConsumerError: The condition can't be read.
    """

    def __init__(self, tags: str | None, where: str | None) -> None:
        self._tags = tags_of(tags)
        self._given, self._where = where, None if where is None else condition_sql(where)
        if where is not None:
            self._duckdb = duckdb.connect(":memory:", config={"threads": 1})
            self._fits(_tried(where))

    def condition(self) -> str:
        """The same in DuckDB's SQL, over the columns tags, keys and properties."""
        texts = [exp.Literal.string(tag).sql(dialect="duckdb") for tag in self._tags or ()]
        tags = "true" if self._tags is None else f"tags IN ({', '.join(texts)})"
        return f"{tags} AND coalesce(({self._where or 'true'}), false)"

    def keep(self, rows: pa.Table) -> pa.Table:
        """The wanted rows, in the same order.

        Raises:
            ConsumerError: the condition can't be used.
        """
        if self._tags is not None:
            rows = rows.filter(pc.is_in(rows["tags"], pa.array(self._tags, pa.string())))
        return rows.filter(self._fits(rows)) if self._where is not None and rows.num_rows else rows

    def _fits(self, rows: pa.Table) -> pa.ChunkedArray:
        self._duckdb.register("messages", rows.select([*_COLUMNS, "properties"]))
        try:
            found = self._duckdb.sql(f"SELECT ({self._where}) AS fits FROM messages").to_arrow_table()["fits"]
        except duckdb.Error as error:
            told = str(error).splitlines()[0]
            msg = f"where: {self._given!r} can't be used: {told}; allowed are {_ALLOWED}"
            raise ConsumerError(msg) from error
        if found.type != pa.bool_():
            msg = f"where: {self._given!r} is a value and no condition; allowed are {_ALLOWED}"
            raise ConsumerError(msg)
        return pc.fill_null(found, False)


def condition_sql(where: str) -> str:
    """The condition in DuckDB's SQL, over the columns tags, keys and properties.

    Raises:
        ConsumerError: It is no condition.
    """
    tree = _parsed(where)
    if not all(isinstance(node, _NODES) for node in tree.walk()):
        msg = f"where: {where!r} is not a condition; allowed are {_ALLOWED}"
        raise ConsumerError(msg)
    dotted = next((node for node in tree.find_all(exp.Column) if len(node.parts) > 1), None)
    if dotted is not None:
        name = ".".join(part.name for part in dotted.parts)
        msg = f'where: {where!r} has a name with a dot; write it as "{name}", in double quotes'
        raise ConsumerError(msg)
    return tree.transform(_look_up).sql(dialect="duckdb")


def _parsed(where: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(where, dialect="duckdb")
    except SqlglotError as error:
        msg = f"where: {where!r} can't be read: {str(error).splitlines()[0]}; allowed are {_ALLOWED}"
        raise ConsumerError(msg) from error


def _tried(where: str) -> pa.Table:
    """Messages whose columns and properties all have one of the values that are tried."""
    names = {node.name for node in _parsed(where).find_all(exp.Column)}
    properties = [[(name, value) for name in names if value is not None] for value in _TRIED]
    texts = pa.array(_TRIED, pa.string())
    return pa.table({"tags": texts, "keys": texts, "properties": pa.array(properties, _TEXTS)})


def _look_up(node: exp.Expression) -> exp.Expression:
    if not isinstance(node, exp.Column):
        return node
    value: exp.Expression = exp.column(node.name.lower())
    if node.name.lower() not in _COLUMNS:
        arguments = [exp.column("properties"), exp.Literal.string(node.name)]
        value = exp.Anonymous(this="map_extract_value", expressions=arguments)
    kind = _kind_beside(node)
    return exp.TryCast(this=value, to=exp.DataType.build(kind)) if kind else value


def _kind_beside(column: exp.Expression) -> str | None:
    """The type that stands for a property here: of the constants beside it, None for texts; alone it is a condition."""
    compared = column.parent
    while isinstance(compared, exp.Paren):
        compared = compared.parent
    if compared is None or isinstance(compared, (exp.And, exp.Or, exp.Not)):
        return "BOOLEAN"
    if not isinstance(compared, (*_COMPARED, exp.Is)):
        return None
    for other in compared.find_all(exp.Literal, exp.Boolean):
        if isinstance(other, exp.Boolean):
            return "BOOLEAN"
        if not other.is_string:
            return "DOUBLE"
    return None
