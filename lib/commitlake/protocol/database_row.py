"""A row of a database as the proof that a local transaction has committed, and its opposite (contract 4.14).

The local transaction inserts a row. Whoever checks inserts a row with the same id that revokes it, a tombstone: if that
goes in, the local transaction can never commit; if not, it has. This is the two-phase message of DTM. No age decides,
and no clock.
"""

from __future__ import annotations

from typing import NamedTuple

from commitlake.errors import RecordError

NAME = "commitlake.database"
"""The user property that names a row: `<database>/<id>`."""
TABLE = "commitlake_transactions"
DATABASE = "database"
"""Id of the row whose `state` names the database, so that a check of another database is not believed."""
COMMITTED, REVOKED = "COMMITTED", "REVOKED"
CREATE = f"CREATE TABLE {TABLE} (id VARCHAR(64) PRIMARY KEY, state VARCHAR(64) NOT NULL, at BIGINT NOT NULL)"
"""`at` is ms since epoch, UTC."""


class RowName(NamedTuple):
    """A row: the name of its database, and its id there."""

    database: str
    id: str

    def __str__(self) -> str:
        """The value of the user property."""
        return f"{self.database}/{self.id}"


def row_name_of(text: str) -> RowName:
    """The row that a half message names.

    Raises:
        RecordError: the text names no row.
    """
    database, slash, name = text.rpartition("/")
    if not (database and slash and name):
        msg = f"{NAME} is {text!r:.100}; allowed is <database>/<id>"
        raise RecordError(msg)
    return RowName(database, name)


def state_of(tries: int) -> str:
    """The `state` of a row that commits; it counts tries to send, so a savepoint that is rolled back sets it back."""
    return f"{COMMITTED} {tries}"


def tries_of(state: str) -> int:
    """The number of tries in the `state` of a row; 0 of one that does not commit."""
    return int(state.removeprefix(COMMITTED)) if state.startswith(COMMITTED) else 0


def decision_of(state: str) -> str | None:
    """COMMIT or ROLLBACK, by the `state` of a row that is there; None for one that something else has written."""
    return "COMMIT" if state.startswith(COMMITTED) else "ROLLBACK" if state == REVOKED else None
