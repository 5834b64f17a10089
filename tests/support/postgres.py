"""A PostgreSQL server of its own for a test, where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from adbc_driver_postgresql import dbapi
from tests.support.cluster import free_port

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
