"""The rows of `commitlake_transactions`, a table in a service's own database, on any connection or at an address."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import pairwise
from typing import Any

from commitlake.clients.sql import Sql, sql_of
from commitlake.config.keys import masked
from commitlake.config.secret_references import is_secret_reference, resolve
from commitlake.errors import (
    ArgumentError,
    ConfigError,
    DatabaseError,
    ProducerError,
    SetupError,
    UndecidedError,
    installed_by,
)
from commitlake.protocol.clock import now_ms
from commitlake.protocol.database_row import (
    CREATE,
    DATABASE,
    HANDLED,
    HANDLING,
    KEPT_MS,
    REVOKED,
    TABLE,
    TIDY_MS,
    RowName,
    created_by,
    decision_of,
    tries_of,
)

_INSERT = f"INSERT INTO {TABLE} (id, state, at) VALUES (:id, :state, :at)"
_ON_CONFLICT, _ON_DUPLICATE = "ON CONFLICT (id) DO NOTHING", "ON DUPLICATE KEY UPDATE id = id"
_UNLESS_THERE = {
    "sqlite": _ON_CONFLICT, "postgresql": _ON_CONFLICT, "mysql": _ON_DUPLICATE, "mariadb": _ON_DUPLICATE
}  # fmt: skip
"""How a check's INSERT passes over rows that are there. MySQL's INSERT IGNORE would cut a long id to another one."""
_AT_ONCE = 1_000
"""Rows that one transaction changes, which others may wait for."""
_BOUNDS = [f"{number:02x}" for number in range(1, 256)]
_SLICES = [
    f"id < '{_BOUNDS[0]}'",
    *(f"id >= '{low}' AND id < '{high}'" for low, high in pairwise(_BOUNDS)),
    f"id >= '{_BOUNDS[-1]}'",
]
"""Conditions that part all ids, which are mostly hexadecimal. No SQL of all databases selects the next 1,000 ids."""
_PATIENCE_S = 30
_OF_INNODB = (
    "SET @commitlake_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = 1",
    "SET innodb_lock_wait_timeout = @commitlake_wait",
)
_WAITS = {
    "postgresql": (
        "SELECT set_config('commitlake.wait', current_setting('lock_timeout'), true),"
        " set_config('lock_timeout', '1s', true)",
        "SELECT set_config('lock_timeout', current_setting('commitlake.wait'), true)",
    ),
    "mysql": _OF_INNODB,
    "mariadb": _OF_INNODB,
}
"""Statements that shorten a transaction's waits for others to a second, and that restore the time before."""

ADDRESSES = "postgresql://HOST/DATABASE, mysql+pymysql://HOST/DATABASE or sqlite:///FILE"
_WAITS_OF_DRIVERS = {
    "psycopg": {"connect_timeout": "10", "options": "-c statement_timeout=60000"},
    "pymysql": {"connect_timeout": "10", "read_timeout": "60", "write_timeout": "60"},
}
"""By driver, in s and ms: a silent host is reported and tried again."""


class ProofRows:
    """The rows of `commitlake_transactions`, on a connection."""

    def __init__(self, sql: Sql) -> None:
        self.sql = sql

    def state(self, name: str) -> str | None:
        """The `state` of a row; None when it is not there."""
        found = self.sql.value(f"SELECT state FROM {TABLE} WHERE id = :id", id=name)
        return None if found is None else str(found)

    def insert(self, name: str, state: str) -> None:
        """Insert a row; raises `Sql.duplicate` when it is there, after a wait for the transaction that has it."""
        self.sql.change(_INSERT, id=name, state=state, at=now_ms())

    def update(self, name: str, before: str, state: str) -> bool:
        """Replace the state of a row, if it is still what it was; returns whether it was."""
        changed = f"UPDATE {TABLE} SET state = :state WHERE id = :id AND state = :before"
        return self.sql.change(changed, id=name, state=state, before=before) == 1

    def database(self) -> str:
        """The name of the database, which its own row has.

        Raises:
            ProducerError: there is no table, or no such row.
            Exception: SQLAlchemy's, when the connection is lost, as by a restart of the server.
        """
        cause = None
        try:
            if (found := self.state(DATABASE)) is not None:
                return found
        except Exception as error:  # the driver's
            if getattr(error, "connection_invalidated", False):
                raise
            cause = getattr(error, "orig", None) or error  # SQLAlchemy's has the statement, on lines of its own
        msg = (
            f"the table {TABLE} does not name the database: {cause or f'it has no row {DATABASE!r}'}; if there is "
            f"none, DatabaseListener(connect, create=True) makes it, or commitlake database create, or: {created_by()}"
        )
        raise ProducerError(msg) from cause

    def decide(self, name: RowName, age_ms: int = 0) -> str:
        """COMMIT or ROLLBACK; from now on the local transaction can't end otherwise.

        Raises:
            UndecidedError: this is another database, or the row proves nothing.
        """
        if (here := self.database()) != name.database:
            msg = f"its row is in the database {name.database}, and this one is {here}"
            raise UndecidedError(msg)
        state = self.state(name.id) if age_ms > KEPT_MS else self._revoked(name.id)
        if tries_of(state) and self.update(name.id, str(state), REVOKED):  # the block committed in its middle
            self.sql.commit()
            return "ROLLBACK"
        decision = decision_of(state)
        if decision is None:
            remedy = "rows are deleted after 30 days: look at the business rows, and end it by hand"
            msg = f"its row has the state {state}; {remedy}"
            raise UndecidedError(msg)
        return decision

    def decide_all(self, asked: Mapping[RowName, int], *, only_looks: bool = False) -> dict[RowName, str | Exception]:
        """`decide` for many rows, given with the ages of their messages; returns decisions, and errors in place of one.

        Few short transactions decide most rows. Waits for open transactions end after half a minute, and the rows that
        are left have no entry. With `only_looks` no row is changed, and a missing row has no entry.

        Raises:
            ProducerError: there is no table, or no name of the database.
            Exception: the driver's, when the connection is lost.
        """
        here = self.database()
        self.sql.rollback()
        ids = sorted({name.id for name, age_ms in asked.items() if name.database == here and age_ms <= KEPT_MS})
        look = self._states if only_looks else self._revoked_all
        states: dict[str, str] = {}
        for begin in range(0, len(ids), _AT_ONCE):
            states |= look(ids[begin : begin + _AT_ONCE])
        told: dict[RowName, str | Exception] = {}
        until = time.monotonic() + _PATIENCE_S
        for name in random.sample(list(asked), len(asked)):  # so that what is open keeps nothing from its turn
            decision = decision_of(states.get(name.id)) if name.database == here else None
            if decision or not (only_looks or time.monotonic() > until):
                told[name] = decision or self._alone(name, asked[name])
        return told

    def _alone(self, name: RowName, age_ms: int) -> str | Exception:
        try:
            return self.decide(name, age_ms)
        except Exception as error:
            self.sql.rollback()
            if getattr(error, "connection_invalidated", False):
                raise
            return error

    def _revoked_all(self, names: Sequence[str]) -> dict[str, str]:
        """Insert tombstones where rows are missing; returns all states, or nothing if a row is locked or refused."""
        if (unless_there := _UNLESS_THERE.get(self.sql.dialect[0])) is None:
            return {}
        rows = [{"id": name, "state": REVOKED, "at": now_ms()} for name in names]
        try:
            with self.short_wait():
                self.sql.change_all(f"{_INSERT} {unless_there}", rows)
            found = self._states(names)  # only now: it sees all that the inserts have waited for
            self.sql.commit()
        except Exception:  # the driver's; one by one it is told of whom it is
            self.sql.rollback()
            return {}
        return found

    def _states(self, names: Sequence[str]) -> dict[str, str]:
        given = {f"n{number}": name for number, name in enumerate(names)}
        places = ", ".join(f":{place}" for place in given)
        return dict(self.sql.rows(f"SELECT id, state FROM {TABLE} WHERE id IN ({places})", given))

    def _revoked(self, name: str) -> str | None:
        """Insert a tombstone, unless the row is there; returns the row's state."""
        try:
            with self.short_wait():
                self.insert(name, REVOKED)
            self.sql.commit()
        except self.sql.duplicate:
            self.sql.rollback()
            return self.state(name)
        return REVOKED

    @contextmanager
    def short_wait(self) -> Iterator[None]:
        """Wait for an open transaction for a second: PostgreSQL would wait for ever, and MySQL for 50 s."""
        shorten, restore = _WAITS.get(self.sql.dialect[0], ("", ""))
        if shorten:
            self.sql.change(shorten)
        try:
            yield
        finally:
            with suppress(Exception):  # the driver's, in PostgreSQL's failed transaction, whose end restores it
                if restore:
                    self.sql.change(restore)

    def tidy(self, older_than_ms: int = TIDY_MS, *, now: int | None = None, only_proofs: bool = False) -> int:
        """Delete rows older than `older_than_ms`, but none of a consumer's block that has not ended; returns how many.

        The age counts up to `now` (ms since epoch, UTC), by default of this machine's clock. With `only_proofs` all
        rows of consumers stay: without one its message is handled again.

        Raises:
            ArgumentError: younger ones would go too.
        """
        if older_than_ms < TIDY_MS:
            msg = (
                "only rows of 31 days or more may go: a check that finds no row rolls back, so without a younger row "
                "messages of a transaction that has committed would be lost; give 31d or more"
            )
            raise ArgumentError(msg)
        count, values = 0, {"before": (now or now_ms()) - older_than_ms, "own": DATABASE}
        kept = f"'{HANDLING}', '{HANDLED}'" if only_proofs else f"'{HANDLING}'"
        old = f"SELECT id FROM {TABLE} WHERE at < :before AND id <> :own AND state NOT IN ({kept})"
        for ids_here in _SLICES:
            ids = [{"id": name} for (name,) in self.sql.rows(f"{old} AND {ids_here}", values)]
            for begin in range(0, len(ids), _AT_ONCE):
                self.sql.change_all(f"DELETE FROM {TABLE} WHERE id = :id", ids[begin : begin + _AT_ONCE])
                self.sql.commit()
            count += len(ids)
        return count

    def create(self) -> None:
        """Make the table, and give the database a name, unless it has one."""
        if not self.sql.has(TABLE):
            self._create_table()
        if self.state(DATABASE) is None:
            with suppress(self.sql.duplicate):  # another instance was quicker
                self.insert(DATABASE, uuid.uuid4().hex)
                self.sql.commit()
        self.sql.rollback()

    def _create_table(self) -> None:
        try:
            self.sql.change(CREATE)
            self.sql.commit()
        except Exception:  # the driver's
            self.sql.rollback()
            if not self.sql.has(TABLE):  # else another instance was quicker
                raise


@contextmanager
def opened_rows(name: str, address: str, user: str | None = None, password: str | None = None) -> Iterator[ProofRows]:
    """The rows on a connection of its own.

    Args:
        name: what errors name, such as a configuration key.
        address: SQLAlchemy's URL, or a reference to it, such as `env:NAME`.
        user: of the database, or a reference.
        password: a reference.

    Raises:
        ConfigError: the address can't be read.
        SetupError: SQLAlchemy or the driver is missing.
        DatabaseError: the database refuses, or is out of reach.
    """
    try:
        alchemy, errors = import_module("sqlalchemy"), import_module("sqlalchemy.exc")
    except ModuleNotFoundError as error:
        msg = f"{name} needs the module {error.name}; install it with {installed_by('database')}"
        raise SetupError(msg) from error
    if password is not None and not is_secret_reference(password):
        msg = f"{name}.password: a secret is not allowed here; write where it is, as env:NAME or file:/path"
        raise ConfigError(msg)
    url = _url(alchemy, errors, name, address).set(
        username=user and resolve(f"{name}.user", user), password=password and resolve(f"{name}.password", password)
    )
    try:
        engine = alchemy.create_engine(url, poolclass=alchemy.NullPool)
        with engine.connect() as connection:
            yield ProofRows(sql_of(connection))
    except ModuleNotFoundError as error:
        msg = f"{name}: the driver {error.name} is missing; install it, or name another one in the address"
        raise SetupError(msg) from error
    except errors.SQLAlchemyError as error:
        told = " ".join(masked("", str(getattr(error, "orig", None) or error)).split())[:300]
        shown = url.set(query={}).render_as_string()
        msg = f"{name}: {told}; check {shown}, its table and user"
        raise DatabaseError(msg) from None  # the chain may show the password


def _url(alchemy: Any, errors: Any, name: str, address: str) -> Any:
    try:
        url = alchemy.make_url(resolve(name, address))
    except (errors.ArgumentError, ValueError):  # its text may have the password
        msg = f"{name}: it is no address of SQLAlchemy; write {ADDRESSES}"
        raise ConfigError(msg) from None
    if not is_secret_reference(address) and (url.password is not None or "password" in url.query):
        msg = f"{name}: a password is not allowed in it; say where the password is, as env:NAME or file:/path"
        raise ConfigError(msg)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    patience = _WAITS_OF_DRIVERS.get(url.drivername.partition("+")[2], {})
    return url.set(query={**patience, **url.query})
