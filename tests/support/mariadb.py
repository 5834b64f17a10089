"""A MariaDB server of its own for a test, where its programs are installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from tests.support.cluster import free_port
from tests.support.polling import wait_for


@contextmanager
def server() -> Iterator[str]:
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
