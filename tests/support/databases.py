"""Databases of a test's own: SQLite by each kind of connection, PostgreSQL and MariaDB where they are installed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from adbc_driver_postgresql import dbapi
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from tests.support.cluster import free_port
from tests.support.polling import wait_for

PASSWORD = "a secret of the database"


def program(name: str) -> str:
    """The path of one of its programs; skips the test where there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(debian[-1]) if debian else shutil.which(name)
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not on this machine")
    return found


class Server:
    """A server whose user is shop, with `PASSWORD`.

    Args:
        place: a directory for its data and its log, which it may write to.
        user: the user of the machine that it runs as; None: this one.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, place: Path, user: str | None) -> None:
        self._place, self._user, self._data = place, user, str(place / "data")
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"

    def create(self) -> None:
        """Makes an empty cluster."""
        (self._place / "password").write_text(PASSWORD)
        (self._place / "password").chmod(0o644)
        pwfile = f"--pwfile={self._place / 'password'}"
        self._call("initdb", "-D", self._data, "-U", "shop", "--auth=scram-sha-256", pwfile, "--no-sync")

    def follow(self, primary: str) -> None:
        """Makes a replica of the primary at HOST:PORT."""
        told = f"postgresql://shop:{quote(PASSWORD)}@{primary}/postgres"
        self._call("pg_basebackup", "-D", self._data, "-d", told, "-R", "-c", "fast", "--no-sync")

    def start(self) -> None:
        """Starts it, also after a crash; a session with synchronous_commit=on waits for a replica that never comes."""
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        options += " -c synchronous_standby_names=nobody -c synchronous_commit=local"
        self._call("pg_ctl", "-D", self._data, "-o", options, "-l", str(self._place / "log"), "-w", "start")

    def stop(self) -> None:
        """Stops it as a crash does: what was not yet written to its log is lost."""
        self._call("pg_ctl", "-D", self._data, "-m", "immediate", "stop")

    def promote(self) -> None:
        """Makes a primary of a replica."""
        self._call("pg_ctl", "-D", self._data, "-w", "promote")

    def url(self, database: str = "postgres") -> str:
        """The address of a database, with user and password."""
        return f"postgresql://shop:{quote(PASSWORD)}@{self.address}/{database}"

    def _call(self, name: str, *words: str) -> None:
        subprocess.run([program(name), *words], check=True, user=self._user, cwd="/", stdout=subprocess.DEVNULL)


@contextmanager
def cluster(primary: str | None = None) -> Iterator[Server]:
    """A server that runs: an empty one, or a replica of the primary at HOST:PORT."""
    program("initdb")
    place = Path(tempfile.mkdtemp(prefix="commitlake-postgres-"))
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    if user:
        shutil.chown(place, user)
    found = Server(place, user)
    found.follow(primary) if primary else found.create()
    found.start()
    try:
        yield found
    finally:
        found.stop()
        shutil.rmtree(place)


@contextmanager
def server() -> Iterator[str]:
    """A server that runs; yields HOST:PORT."""
    with cluster() as found:
        yield found.address


def connected(address: str) -> dbapi.Connection:
    """A connection to the server at HOST:PORT."""
    return dbapi.connect(f"postgresql://shop:{quote(PASSWORD)}@{address}/postgres")


def execute(address: str, *statements: str) -> None:
    """Run statements, committed together."""
    with connected(address) as db:
        for statement in statements:
            with db.cursor() as cursor:
                cursor.execute(statement)
        db.commit()


@contextmanager
def shop() -> Iterator[Server]:
    """A cluster with the tables of a shop; a second `points` of order 17 is refused at the commit."""
    with cluster() as found:
        execute(
            found.address,
            "CREATE TABLE orders (id TEXT PRIMARY KEY)",
            "CREATE TABLE points (id TEXT UNIQUE DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO points VALUES ('17')",
        )
        yield found


@contextmanager
def mariadb() -> Iterator[str]:
    """A server that runs; yields the URL of an empty database. Skips the test where there is no MariaDB."""
    if not (shutil.which("mariadbd") and shutil.which("mariadb-install-db")):
        pytest.skip("MariaDB's mariadbd is not on this machine")
    place, port = Path(tempfile.mkdtemp(prefix="commitlake-mariadb-")), free_port()
    common = ["--no-defaults", f"--datadir={place}", "--user=root"]
    subprocess.run(["mariadb-install-db", *common], check=True, stdout=subprocess.DEVNULL)
    log = (place / "log").open("w")
    running = subprocess.Popen(
        ["mariadbd", *common, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={place / 'socket'}",
         "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0"],
        stdout=log, stderr=log,
    )  # fmt: skip
    try:
        wait_for(lambda: _has_shop(port), 60)
        yield f"mysql+pymysql://root@127.0.0.1:{port}/shop"
    finally:
        running.kill()
        running.wait()
        log.close()
        shutil.rmtree(place)


def _has_shop(port: int) -> bool:
    with suppress(OperationalError):
        engine = create_engine(f"mysql+pymysql://root@127.0.0.1:{port}/")
        with engine.begin() as connection:
            connection.execute(text("CREATE DATABASE IF NOT EXISTS shop"))
        engine.dispose()
        return True
    return False


KINDS = ["sqlite3", "connection", "session"]


class LiteDatabase:
    """A database in a file, and `made`, a connection of some kind to it."""

    def __init__(self, place: Path, kind: str, *statements: str, timeout_s: float) -> None:
        self.place, self._timeout_s = place, timeout_s
        self.sql(";".join(statements))
        self.made = self.connection(kind)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.place, timeout=self._timeout_s)

    def connection(self, kind: str) -> Any:
        if kind == "sqlite3":
            return self.connect()
        engine = create_engine(f"sqlite:///{self.place}")
        return engine.connect() if kind == "connection" else Session(engine)

    def sql(self, statements: str) -> None:
        with closing(self.connect()) as connection:
            connection.executescript(statements)

    def run(self, statement: str) -> None:
        """Run a statement on `made`."""
        self.made.execute(statement if isinstance(self.made, sqlite3.Connection) else text(statement))

    def column(self, sql: str) -> list[str]:
        """The first column of what others see."""
        with closing(self.connect()) as connection:
            return [row[0] for row in connection.execute(sql)]
