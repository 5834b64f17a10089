"""The verdict on an op or a part whose message is not open in its segment (contract 4.1, 4.2, 4.6, 4.8, 4.10).

Such an op may be a duplicate, a conflict, early, or about nothing. A few facts from the tables decide which. A
transaction that a `RESUME` of the same batch reopens counts as open.
"""

from __future__ import annotations

import numpy as np

from commitlake.protocol.statemachine.rows import Longs, Mask, Rows
from commitlake.protocol.states import Delivery, Kind, Refusal, Ruling, State

FACT = np.dtype(
    [
        (name, "i8")
        for name in (
            *("kind", "admin", "tid", "grp", "stored", "op_offset"),  # of the op or part
            "last",  # 1: what has not landed by now is missing
            *("is_known", "is_part", "first_tid", "first_grp"),  # of the first half message, or the delayed message
            "state",  # how that ended, a `State` or a `Delivery`; absent: it is open
            "is_final",  # 1: no RESUME may reopen it
            *("resumed", "resumed_at"),  # of the newest RESUME: append time and offset
            *("missing", "other_tid", "other_grp", "foreign", "orphan"),  # 1: holds for a further one that the op lists
        )
    ]
)
"""All facts that a verdict depends on. A fact that is absent, or does not hold, is -1."""
_ALREADY = {
    State.COMMITTED: Refusal.ALREADY_COMMITTED,
    State.ROLLED_BACK: Refusal.ALREADY_ROLLED_BACK,
    State.DISCARDED: Refusal.ALREADY_DISCARDED,
}


def judge(facts: Rows) -> Longs:
    """The verdict on each unmatched op or part, a row of `FACT`: a `Refusal`, or a `Ruling`."""
    kind = facts["kind"]
    special = {Kind.RECALL: _recall(facts), Kind.RESUME: _resume(facts), Kind.PART: _part(facts)}
    return np.select([kind == each for each in special], list(special.values()), _decision(facts)).astype(np.int64)


def is_before_resume(facts: Rows) -> Mask:
    """Whether an op came before the RESUME: one of `admin` by offset, as that has one partition, others by time."""
    older = facts["stored"] <= facts["resumed"]
    return np.asarray(np.where(facts["admin"] == 1, facts["op_offset"] <= facts["resumed_at"], older))


def _decision(facts: Rows) -> Longs:
    """Reasons in their order: id, group, the named message, how that ended, and last a message that never landed."""
    known, ended = facts["is_known"] == 1, facts["state"] > 0
    wanted = np.where(facts["kind"] == Kind.COMMIT, State.COMMITTED, State.ROLLED_BACK)
    otherwise = np.where(facts["state"] == wanted, 0, facts["state"])
    cases = {
        Refusal.WRONG_TRANSACTION_ID: _is_of_another_id(facts),
        Refusal.WRONG_PRODUCER_GROUP: _is_of_another_group(facts),
        Refusal.BAD_FIRST_HALF: known & ((facts["is_part"] == 1) | (facts["foreign"] == 1)),
        **{reason: otherwise == state for state, reason in _ALREADY.items()},
    }
    late = known & ((~ended & is_before_resume(facts)) | (facts["orphan"] == 1))
    missing = ~known | (facts["missing"] == 1)
    return np.select(
        [*cases.values(), late, missing, ended],
        [*cases, Refusal.ALREADY_DISCARDED, Refusal.NO_HALF_MESSAGE, Ruling.NOTHING],
        Ruling.REQUEUE,
    )


def _is_of_another_id(facts: Rows) -> Mask:
    other = (facts["is_known"] == 1) & (facts["tid"] != facts["first_tid"])
    return np.asarray(other | (facts["other_tid"] == 1))


def _is_of_another_group(facts: Rows) -> Mask:
    other = ((facts["is_known"] == 1) & (facts["grp"] != facts["first_grp"])) | (facts["other_grp"] == 1)
    return np.asarray((facts["admin"] == 0) & other)


def _resume(facts: Rows) -> Longs:
    """Only a DISCARDED transaction that is not final reopens."""
    final = facts["is_final"] == 1
    cases = {
        Refusal.NO_HALF_MESSAGE: facts["is_known"] != 1,
        Refusal.WRONG_TRANSACTION_ID: _is_of_another_id(facts),
        Refusal.BAD_FIRST_HALF: (facts["is_part"] == 1) & ~final,
        Ruling.ACCEPT: (facts["state"] == State.DISCARDED) & ~final,
    }
    return np.select(list(cases.values()), list(cases), Refusal.NOT_DISCARDED)


def _recall(facts: Rows) -> Longs:
    known = facts["is_known"] == 1
    same = known & (facts["tid"] == facts["first_tid"]) & (facts["grp"] == facts["first_grp"])
    return np.select(
        [~known & (facts["last"] != 1), ~same, facts["state"] == Delivery.DELIVERED, facts["state"] > 0],
        [Ruling.REQUEUE, Refusal.NO_DELAYED_MESSAGE, Refusal.RECALL_TOO_LATE, Ruling.NOTHING],
        Ruling.REQUEUE,
    )


def _part(facts: Rows) -> Longs:
    """A late part follows its first; one without a first that fits is an ORPHAN."""
    known = facts["is_known"] == 1
    same = (facts["tid"] == facts["first_tid"]) & (facts["grp"] == facts["first_grp"])
    fits = known & (facts["is_part"] != 1) & same
    return np.select(
        [~known & (facts["last"] != 1), ~fits, facts["state"] > 0],
        [Ruling.REQUEUE, Ruling.ORPHAN, Ruling.FOLLOW],
        Ruling.REQUEUE,
    )
