"""Which messages a group wants, as RocketMQ has it: a tag expression, and an SQL condition on properties.

Names in a condition are those of properties; `TAGS` and `KEYS` are columns. A property is a text: beside a number it
counts as one, beside TRUE or FALSE as that, and where it is neither, or not there, the message is not wanted.
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
        self._where = None if where is None else condition_sql(where)
        self._duckdb = duckdb.connect(":memory:", config={"threads": 1}) if where is not None else None

    def condition(self) -> str:
        """The same in DuckDB's SQL, over the columns tags, keys and properties."""
        texts = [exp.Literal.string(tag).sql(dialect="duckdb") for tag in self._tags or ()]
        tags = "true" if self._tags is None else f"tags IN ({', '.join(texts)})"
        return f"{tags} AND coalesce(({self._where or 'true'}), false)"

    def keep(self, rows: pa.Table) -> pa.Table:
        """The wanted rows, in the same order."""
        if self._tags is not None:
            rows = rows.filter(pc.is_in(rows["tags"], pa.array(self._tags, pa.string())))
        if self._duckdb is not None and rows.num_rows:
            self._duckdb.register("messages", rows.select(["tags", "keys", "properties"]))
            kept = self._duckdb.sql(f"SELECT coalesce(({self._where}), false) AS kept FROM messages").to_arrow_table()
            rows = rows.filter(kept["kept"])
        return rows


def condition_sql(where: str) -> str:
    """The condition in DuckDB's SQL, over the columns tags, keys and properties.

    Raises:
        ConsumerError: It is no condition.
    """
    try:
        tree = sqlglot.parse_one(where, dialect="duckdb")
    except SqlglotError as error:
        msg = f"where: {where!r} can't be read: {str(error).splitlines()[0]}; allowed are {_ALLOWED}"
        raise ConsumerError(msg) from error
    if not all(isinstance(node, _NODES) for node in tree.walk()):
        msg = f"where: {where!r} is not a condition; allowed are {_ALLOWED}"
        raise ConsumerError(msg)
    return tree.transform(_look_up).sql(dialect="duckdb")


def _look_up(node: exp.Expression) -> exp.Expression:
    if not isinstance(node, exp.Column):
        return node
    if node.name.lower() in _COLUMNS:
        return exp.column(node.name.lower())
    value: exp.Expression = exp.Anonymous(
        this="map_extract_value", expressions=[exp.column("properties"), exp.Literal.string(node.name)]
    )
    kind = _kind_beside(node)
    return exp.TryCast(this=value, to=exp.DataType.build(kind)) if kind else value


def _kind_beside(column: exp.Expression) -> str | None:
    """The type of the constants that a column is compared with, None for texts."""
    compared = column.parent
    if not isinstance(compared, _COMPARED):
        return None
    for other in compared.find_all(exp.Literal, exp.Boolean):
        if isinstance(other, exp.Boolean):
            return "BOOLEAN"
        if not other.is_string:
            return "DOUBLE"
    return None
