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


@contextmanager
def server() -> Iterator[str]:
    """A server whose user is shop, with `PASSWORD`; yields HOST:PORT."""
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    place = Path(tempfile.mkdtemp(prefix="commitlake-postgres-"))
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    if user:
        shutil.chown(place, user)
    (place / "password").write_text(PASSWORD)
    (place / "password").chmod(0o644)
    port = free_port()

    def call(*words: str) -> None:
        subprocess.run(words, check=True, user=user, cwd="/", stdout=subprocess.DEVNULL)

    data = str(place / "data")
    call(initdb, "-D", data, "-U", "shop", "--auth=scram-sha-256", f"--pwfile={place / 'password'}", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
    call(pg_ctl, "-D", data, "-o", options, "-l", str(place / "log"), "-w", "start")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        call(pg_ctl, "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(place)


def execute(address: str, *statements: str) -> None:
    """Run statements, each committed."""
    with dbapi.connect(f"postgresql://shop:{quote(PASSWORD)}@{address}/postgres") as db:
        for statement in statements:
            with db.cursor() as cursor:
                cursor.execute(statement)
        db.commit()
