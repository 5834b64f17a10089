"""A database of SQLite for tests, with a connection of each kind that an application may have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

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
