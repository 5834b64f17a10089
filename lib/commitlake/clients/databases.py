"""The rows of `commitlake_transactions` in a database at an address, by SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from commitlake.clients.proof_rows import ProofRows
from commitlake.clients.sql import sql_of
from commitlake.config.keys import masked
from commitlake.config.secret_references import is_secret_reference, resolve
from commitlake.errors import ConfigError, DatabaseError, SetupError, installed_by

ADDRESSES = "postgresql://HOST/DATABASE, mysql+pymysql://HOST/DATABASE or sqlite:///FILE"
_PATIENCE = {
    "psycopg": {"connect_timeout": "10", "options": "-c statement_timeout=60000"},
    "pymysql": {"connect_timeout": "10", "read_timeout": "60", "write_timeout": "60"},
}
"""By driver, in s and ms: a silent host is reported and tried again."""


@contextmanager
def opened_rows(name: str, address: str, user: str | None = None, password: str | None = None) -> Iterator[ProofRows]:
    """The rows on a connection of its own.

    Args:
        name: the configuration key whose parts these are, for errors.
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
    patience = _PATIENCE.get(url.drivername.partition("+")[2], {})
    return url.set(query={**patience, **url.query})
