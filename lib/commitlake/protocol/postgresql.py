"""A transaction of PostgreSQL as a half message names it, and the decision in a server's answer (contract 4.13)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from commitlake.errors import RecordError

TRANSACTION = "postgresql.transaction"
"""The user property that names the transaction: `<system identifier>/<timeline>/<xid>`, all decimal."""
IN_PROGRESS = "in progress"
_FORM = re.compile(r"(-?\d{1,19})/(\d{1,10})/(\d{1,19})", re.ASCII)
_FIRST_XID = 3
"""Lower xids are PostgreSQL's own, and always committed."""
_MOST_XID = (1 << 63) - 1

SYSTEM = "(SELECT system_identifier::text FROM pg_control_system())"
TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
"""The timeline to which the server writes now, in hexadecimal digits. After a promotion pg_control_checkpoint() returns
the old one until the first checkpoint."""
_QUESTION = f"""
SELECT {SYSTEM}, CASE WHEN NOT pg_is_in_recovery() THEN {TIMELINE} END, xid,
       CASE WHEN pg_is_in_recovery() THEN NULL
            WHEN xid::xid8 >= pg_snapshot_xmax(pg_current_snapshot()) THEN '{IN_PROGRESS}'
            ELSE pg_xact_status(xid::xid8) END
FROM unnest('{{{{{{xids}}}}}}'::text[]) AS xid
"""


class Xact(NamedTuple):
    """A transaction: the cluster's system identifier, the timeline that it was written on, and its 64-bit xid."""

    system: str
    timeline: int
    xid: int

    def __str__(self) -> str:
        """The value of the user property."""
        return f"{self.system}/{self.timeline}/{self.xid}"


class Answer(NamedTuple):
    """A server's answer for one xid: its system identifier and timeline (None: a replica), and the xid's status."""

    system: str
    timeline: int | None
    xid: int
    status: str | None


def xact(system: str, timeline: str, xid: str) -> Xact:
    """A transaction from the texts of a server; `timeline` is the result of `TIMELINE`."""
    return Xact(system, int(timeline, 16), int(xid))


def xact_of(text: str) -> Xact:
    """The transaction that a half message names.

    Raises:
        RecordError: `text` names none; a client that may write to `half` can send any text.
    """
    match = _FORM.fullmatch(text)
    if match is None or not _FIRST_XID <= int(match[3]) <= _MOST_XID:
        msg = f"{TRANSACTION}: {text[:80]!r} is not allowed; allowed is SYSTEM/TIMELINE/XID, each a decimal number"
        raise RecordError(msg)
    return Xact(match[1], int(match[2]), int(match[3]))


def question(xids: Iterable[int]) -> str:
    """SQL whose rows `answer_of` reads: one statement, so that one server answers all of it.

    An xid from the snapshot's xmax on is reported as in progress; it may also have never been here. `pg_xact_status`
    rejects an xid in the future, and the whole statement would fail.
    """
    return _QUESTION.format(xids=",".join(map(str, xids)))


def answer_of(system: str, timeline: str | None, xid: str, status: str | None) -> Answer:
    """The answer in a row of `question`."""
    return Answer(system, None if timeline is None else int(timeline, 16), int(xid), status)


def judged(asked: Xact, answer: Answer) -> tuple[str | None, str]:
    """The decision, None where the answer proves nothing, and the reason."""
    if answer.timeline is None:
        return None, "the server is a replica, which may lag behind; give the address of the primary"
    here, there = (answer.system, answer.timeline), (asked.system, asked.timeline)
    if here != there:
        what = "another cluster" if answer.system != asked.system else "another timeline, by a restore or a failover"
        return None, (
            f"the server is {what}: {_place(here)}, the transaction was on {_place(there)}; what became of it there is "
            "not known here, so end it with commitlake tx commit or rollback"
        )
    decision = {"committed": "COMMIT", "aborted": "ROLLBACK"}.get(answer.status or "")
    return decision, answer.status or "the server no longer knows it: vacuum has frozen its age away"


def _place(cluster: tuple[str, int]) -> str:
    return f"{cluster[0]} timeline {cluster[1]}"
