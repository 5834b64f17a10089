"""A transaction of PostgreSQL as a half message names it, and what a server's answer says of it (contract 4.13)."""

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
"""Those below are PostgreSQL's own, and always committed."""
_MOST_XID = (1 << 63) - 1

SYSTEM = "(SELECT system_identifier::text FROM pg_control_system())"
TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
"""The timeline that is written now, as hexadecimal digits. pg_control_checkpoint() has the old one until the first
checkpoint after a promotion."""
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
        """As the property has it."""
        return f"{self.system}/{self.timeline}/{self.xid}"


class Answer(NamedTuple):
    """A server's answer for one xid: what it is, its timeline (None: a replica), and what `pg_xact_status` says."""

    system: str
    timeline: int | None
    xid: int
    status: str | None


def xact(system: str, timeline: str, xid: str) -> Xact:
    """A transaction as a server tells it, the timeline as `TIMELINE`."""
    return Xact(system, int(timeline, 16), int(xid))


def xact_of(text: str) -> Xact:
    """The transaction that a half message names.

    Raises:
        RecordError: it names none; whoever may write to `half` can send anything.
    """
    match = _FORM.fullmatch(text)
    if match is None or not _FIRST_XID <= int(match[3]) <= _MOST_XID:
        msg = f"{TRANSACTION}: {text[:80]!r} is not allowed; allowed is SYSTEM/TIMELINE/XID, each a decimal number"
        raise RecordError(msg)
    return Xact(match[1], int(match[2]), int(match[3]))


def question(xids: Iterable[int]) -> str:
    """SQL whose rows `answer_of` reads, in one statement, so that one server answers all of it.

    What no snapshot can see yet is in progress, or was never here: `pg_xact_status` would refuse one in the future, and
    all others with it.
    """
    return _QUESTION.format(xids=",".join(map(str, xids)))


def answer_of(system: str, timeline: str | None, xid: str, status: str | None) -> Answer:
    """A row of `question`."""
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
