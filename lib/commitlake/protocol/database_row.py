"""A row of a database as the proof that a local transaction has committed, and its opposite (contract 4.14).

The local transaction inserts a row. Whoever checks inserts a row with the same id that revokes it, a tombstone: if that
goes in, the local transaction can never commit; if not, it has. This is the two-phase message of DTM. No isolation
level decides, since a unique key waits for what is open.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

from commitlake.errors import RecordError
from commitlake.protocol.durations import DAY_MS

NAME = "commitlake.database"
"""The user property that names a row: `<database>/<id>`."""
TABLE = "commitlake_transactions"
DATABASE = "database"
"""Id of the row whose `state` names the database, so that a check of another one is not believed."""
COMMITTED, REVOKED = "COMMITTED", "REVOKED"
HANDLING, HANDLED = "HANDLING", "HANDLED"
"""The `state` of a consumer's row, whose block has not ended, and has. Its id is no local transaction's."""
CREATE = f"CREATE TABLE {TABLE} (id VARCHAR(64) PRIMARY KEY, state VARCHAR(64) NOT NULL, at BIGINT NOT NULL)"
"""`at` is ms since epoch, UTC."""
KEPT_MS = 30 * DAY_MS
"""Rows are not deleted before this age, by any clock that is less than a day wrong. No older check gets a decision."""
TIDY_MS = KEPT_MS + DAY_MS
_OPEN = "OPEN"
_ID = re.compile("[!-~]{1,64}")
"""Databases refuse a NUL, cut a 65th character, and take an id with a blank at its end for the one without."""


class RowName(NamedTuple):
    """A row: the name of its database, and its id there."""

    database: str
    id: str

    def __str__(self) -> str:
        """The value of the user property."""
        return f"{self.database}/{self.id}"


def created_by() -> str:
    """The SQL that makes the table, and gives the database a new name."""
    return f"{CREATE}; INSERT INTO {TABLE} VALUES ('{DATABASE}', '{uuid.uuid4().hex}', 0)"


def row_name_of(text: str) -> RowName:
    """The row that a half message names.

    Raises:
        RecordError: the text names no row.
    """
    database, _, name = text.rpartition("/")
    if not (database and _ID.fullmatch(name)):
        msg = f"{NAME} is {text!r:.100}; allowed is <database>/<id>, with 1 to 64 visible ASCII characters as id"
        raise RecordError(msg)
    return RowName(database, name)


def open_state(tries: int) -> str:
    """The `state` of a row until its block ends.

    A committed row with it is of a block that committed in its middle: what came after that may roll back, so it proves
    nothing. The state counts tries to send; a savepoint that is rolled back sets it back.
    """
    return f"{_OPEN} {tries}"


def tries_of(state: str | None) -> int | None:
    """The number of tries in an open state; None of another one."""
    return int(state.removeprefix(_OPEN)) if state and state.startswith(_OPEN) else None


def decision_of(state: str | None) -> str | None:
    """COMMIT or ROLLBACK, by the `state` of a row; None without one, and of one that proves nothing."""
    return {COMMITTED: "COMMIT", REVOKED: "ROLLBACK"}.get(state or "")
