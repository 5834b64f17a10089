"""A rule of the key `checks`: how a business table, or a database, answers for the transactions of a producer group.

`match` joins columns of the half message with those of the table. `commit` and `rollback` are conditions on columns of
the table, on `absent` and on `age`. `absent` says that the table has no such row. `age` is the half message's, compared
with a text such as '10m'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from commitlake.clients.delta.allowed_places import DELTA_LOG
from commitlake.clients.proof_rows import ADDRESSES
from commitlake.config.secret_references import is_secret_reference
from commitlake.config.values import duration
from commitlake.errors import ConfigError
from commitlake.protocol.durations import duration_ms

POSTGRESQL = "postgresql://"
_EXAMPLE = f"{POSTGRESQL}HOST/DATABASE?table=NAME"
HALF_COLUMNS = ("keys", "message_id", "transaction_id")
_ABSENT, _AGE, _HERE = "absent", "age", "commitlake_here"


@dataclass(frozen=True)
class CheckRule:
    """A rule as SQL for DuckDB, over `d` (due transactions) and `b` (the business table).

    Attributes:
        group: the producer group.
        table: `delta:PLACE`, `parquet:PLACE` or `postgresql://HOST/DATABASE?table=NAME`, or `delta-log`; empty when
            `database` answers.
        match: pairs that the join compares: SQL over `d`, and a column of the table.
        commit: SQL; when to commit.
        rollback: SQL; when to roll back.
        columns: the columns of the table that the conditions name.
        every_ms: the interval between two looks.
        user: of the database.
        password: where the password is, such as `env:NAME`.
        places: with `delta-log`: the places below which a half message may name tables.
        database: SQLAlchemy's address of the services' database, whose rows are asked how their transactions ended.
    """

    group: str
    table: str
    match: tuple[tuple[str, str], ...]
    commit: str
    rollback: str
    columns: tuple[str, ...]
    every_ms: int
    user: str | None = None
    password: str | None = None
    places: tuple[str, ...] = ()
    database: str = ""

    @property
    def needs_postgresql(self) -> bool:
        """Whether PostgreSQL is asked, for a table or for its own transactions."""
        return self.database.startswith(POSTGRESQL) or self.table.startswith(POSTGRESQL)

    @property
    def on(self) -> str:
        """The join's condition."""
        return " AND ".join(f"{left} = CAST(b.{_name(right)} AS VARCHAR)" for left, right in self.match)


def rule_of(group: str, given: Mapping[str, Any], timeout_ms: int) -> CheckRule:
    """Read a rule.

    Args:
        group: the producer group.
        given: its keys and values, as in the configuration.
        timeout_ms: `transaction.timeout`: a local transaction may run so long, so no row counts as absent before.

    Raises:
        ConfigError: a condition can't be read, or would roll back a transaction that may still run.
    """
    name = f"checks.{group}"
    if "database" in given:
        return _of_database(name, group, given)
    if given["table"] == DELTA_LOG:
        return CheckRule(
            group, DELTA_LOG, (), "false", "false", (), _every(name, given), places=tuple(given.get("places", ()))
        )
    if "places" in given:
        msg = f"{name}.places: {given['places']} is for table: {DELTA_LOG} only; leave it out"
        raise ConfigError(msg)
    if "match" not in given:
        msg = f"{name}.match: it is missing; write for example match: keys = id"
        raise ConfigError(msg)
    every = _every(name, given)
    table = given["table"].removeprefix("jdbc:")
    _check_table(name, table)
    _check_password(name, given.get("password"))
    conditions = [_parsed(f"{name}.{each}", given.get(each, "false")) for each in ("commit", "rollback")]
    for each, tree in zip(("commit", "rollback"), conditions, strict=True):
        _check_without_row(f"{name}.{each}", tree, timeout_ms)
    named = {column.name for tree in conditions for column in tree.find_all(exp.Column)} - {_ABSENT, _AGE}
    return CheckRule(
        group=group,
        table=table,
        match=_pairs(f"{name}.match", given["match"]),
        commit=_condition(conditions[0]),
        rollback=_condition(conditions[1]),
        columns=tuple(sorted(named)),
        every_ms=every,
        user=given.get("user"),
        password=given.get("password"),
    )


def _of_database(name: str, group: str, given: Mapping[str, Any]) -> CheckRule:
    others = sorted(set(given) - {"database", "user", "password", "every"})
    if others:
        msg = f"{name}.{others[0]}: {given[others[0]]!r} is not allowed beside database, which needs none; leave it out"
        raise ConfigError(msg)
    address = given["database"].removeprefix("jdbc:")
    url = urlsplit(address)
    if _has_password(url) or "table" in parse_qs(url.query) or not url.scheme:
        msg = f"{name}.database: write {ADDRESSES}, without a table, and user and password as keys"
        raise ConfigError(msg)
    _check_password(name, given.get("password"))
    return CheckRule(
        group, "", (), "false", "false", (), _every(name, given), given.get("user"), given.get("password"),
        database=address,
    )  # fmt: skip


def _every(name: str, given: Mapping[str, Any]) -> int:
    try:
        return duration(1)(given.get("every", "30s"))
    except ValueError as error:
        msg = f"{name}.every: {given['every']!r} is not allowed; allowed is {error}"
        raise ConfigError(msg) from error


def _check_table(name: str, table: str) -> None:
    if not table.startswith(("delta:", "parquet:", POSTGRESQL)):
        kind = table.partition(":")[0]
        msg = f"{name}.table: '{kind}:' is not allowed; give delta:PLACE, parquet:PLACE, {_EXAMPLE} or {DELTA_LOG}"
        raise ConfigError(msg)
    url = urlsplit(table)
    if table.startswith(POSTGRESQL) and (not parse_qs(url.query).get("table") or _has_password(url)):
        msg = f"{name}.table: it names no table, or a password; write {_EXAMPLE}, and user and password as keys"
        raise ConfigError(msg)


def _has_password(url: SplitResult) -> bool:
    """Whether an address has a password, also one with a slash, after which the address is a path."""
    return url.password is not None or "@" in url.path or "password" in parse_qs(url.query, True)


def _check_password(name: str, password: str | None) -> None:
    if password is not None and not is_secret_reference(password):
        msg = f"{name}.password: a secret is not allowed here; write where it is, as env:NAME or file:/path"
        raise ConfigError(msg)


def _parsed(name: str, text: str) -> exp.Expr:
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except SqlglotError as error:
        msg = f"{name}: {text!r} can't be read: {str(error).splitlines()[0]}; give a condition"
        raise ConfigError(msg) from error
    if not isinstance(tree, exp.Condition) or tree.find(exp.Query):
        msg = f"{name}: {text!r} is no condition; compare columns with AND, OR and NOT"
        raise ConfigError(msg)
    return tree


def _pairs(name: str, text: str) -> tuple[tuple[str, str], ...]:
    """The pairs of the join: in each equation the half message's column stands left."""
    tree = _parsed(name, text)
    equations = list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
    found = []
    for each in equations:
        left, right = each.args.get("this"), each.args.get("expression")
        is_equation = isinstance(each, exp.EQ) and isinstance(right, exp.Column)
        if not is_equation or not isinstance(left, exp.Expr) or not _is_of_half(left):
            msg = f"{name}: {text!r} is not allowed; write {' or '.join(HALF_COLUMNS)} or properties['x'] = column"
            raise ConfigError(msg)
        assert isinstance(right, exp.Expr)
        found.append((_qualified(left), right.name))
    return tuple(found)


def _is_of_half(left: exp.Expr) -> bool:
    if isinstance(left, exp.Bracket):
        return isinstance(left.this, exp.Column) and left.this.name == "properties"
    return isinstance(left, exp.Column) and left.name in HALF_COLUMNS


def _name(column: str) -> str:
    return exp.to_identifier(column).sql(dialect="duckdb")


def _qualified(tree: exp.Expr) -> str:
    def qualify(node: exp.Expr) -> exp.Expr:
        return exp.column(node.name, table="d") if isinstance(node, exp.Column) else node

    return tree.copy().transform(qualify).sql(dialect="duckdb")


def _if_there(part: exp.Expr) -> exp.Expr:
    return exp.case().when(exp.column(_HERE), part)


def _condition(tree: exp.Expr, of_row: Callable[[exp.Expr], exp.Expr] = _if_there) -> str:
    """SQL of a condition over `b`, `absent` and `age`; without a row, all other parts of it are unknown."""

    def look_up(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column):
            return exp.column(node.name, table="d" if node.name in (_ABSENT, _AGE) else "b")
        ms = duration_ms(node.name) if isinstance(node, exp.Literal) and _is_about_age(node.parent) else None
        if ms is None and isinstance(node, exp.Literal) and _is_age_compared(node.parent):
            msg = f"age is compared with {node.sql()}; give a text with a unit, such as '10m'"
            raise ConfigError(msg)
        return node if ms is None else exp.Literal.number(ms)

    sql = _by_row(tree, of_row).transform(look_up).sql(dialect="duckdb")
    return sql.replace(f"d.{_ABSENT}", f"(b.{_HERE} IS NULL)").replace(f"d.{_AGE}", "d.age_ms")


def _by_row(tree: exp.Expr, of_row: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Make each part that is not about `absent` or `age` alone unknown where there is no row.

    SQL's outer join has NULL there. So IS NULL and COALESCE, like TRUE, would end a transaction that may still run.
    """
    if isinstance(tree, exp.Connector | exp.Not | exp.Paren):
        found = tree.copy()
        for name in ("this", "expression"):
            if isinstance(part := tree.args.get(name), exp.Expr):
                found.set(name, _by_row(part, of_row))
        return found
    names = {column.name for column in tree.find_all(exp.Column)}
    return of_row(tree) if not names or not names <= {_ABSENT, _AGE} else tree


def _is_about_age(node: object) -> bool:
    return isinstance(node, exp.Expr) and any(column.name == _AGE for column in node.find_all(exp.Column))


def _is_age_compared(node: object) -> bool:
    return isinstance(node, exp.Binary) and isinstance(node, exp.Predicate) and _is_about_age(node)


def _check_without_row(name: str, tree: exp.Expr, timeout_ms: int) -> None:
    """Without a row, a condition may hold only at an age at which no local transaction runs any more.

    The check computes the condition just below and above each age that it names, as NOT may invert all of it.
    """
    named = [duration_ms(each.name) or 0 for each in tree.find_all(exp.Literal)]
    ages = {ms + by for ms in (0, timeout_ms, *named) for by in (-1, 0, 1) if 0 <= ms + by < timeout_ms}
    rows = f"(SELECT NULL AS {_HERE}) b, (SELECT unnest({sorted(ages)}::BIGINT[]) AS age_ms) d"
    condition = _condition(tree, lambda _: exp.null())
    try:
        with duckdb.cursor() as db:  # a database of its own takes 20 times as long
            ((age_ms,),) = db.execute(f"SELECT min(age_ms) FROM {rows} WHERE {condition}").fetchall()
    except duckdb.Error as error:
        msg = f"{name}: {tree.sql()} can't be read: {str(error).splitlines()[0]}; give a condition"
        raise ConfigError(msg) from error
    if age_ms is not None:
        msg = (
            f"{name}: it holds without a row at an age of {age_ms}ms, and before transaction.timeout ({timeout_ms}ms) "
            "the local transaction may still run; write absent AND age > '10m'"
        )
        raise ConfigError(msg)
