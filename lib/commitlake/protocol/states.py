"""The vocabulary of the coordinator: states, reasons, refusals, sources, and the kinds of rows and events.

Spark carries the numbers, and the tables hold the names. The names belong to the contract and never change. The numbers
of `Kind` and `Source` never change either, since the internal table `reentries` holds them.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """How a half message ended. A terminal state is final: only `RESUME` of a DISCARDED one opens a new round."""

    COMMITTED = 1
    ROLLED_BACK = 2
    DISCARDED = 3


class Delivery(IntEnum):
    """How a delayed message, or a committed half message with a delay, ended."""

    DELIVERED = 1
    RECALLED = 2
    DUPLICATE = 3
    """Due, but its name was shown before (`topics.dedup`)."""


class Reason(IntEnum):
    """Why a half message ended."""

    DIRECT = 1
    CHECK = 2
    ADMIN = 3
    CHECK_MAX = 4
    EXPIRED = 5
    ORPHAN = 6
    REFUSED_PART = 7


class Refusal(IntEnum):
    """Why an op record changed nothing: the reason in `rejected`."""

    WRONG_TRANSACTION_ID = 1
    WRONG_PRODUCER_GROUP = 2
    ALREADY_COMMITTED = 3
    ALREADY_ROLLED_BACK = 4
    ALREADY_DISCARDED = 5
    NO_HALF_MESSAGE = 6
    BAD_FIRST_HALF = 7
    NOT_DISCARDED = 8
    NO_DELAYED_MESSAGE = 9
    RECALL_TOO_LATE = 10


class Ruling(IntEnum):
    """The verdict on an unmatched op or part that is not refused."""

    NOTHING = 0
    REQUEUE = -2
    """Its message may still land, or ends in this batch: it goes back to its segment, and waits on."""
    ACCEPT = -3
    """A RESUME that reopens its transaction."""
    FOLLOW = -4
    """A part that ends as its first half message did."""
    ORPHAN = -5


OFFSET_USED_BEFORE = "OFFSET_USED_BEFORE"
"""A reason in `rejected`: the offset was another record's before. Such a row does not concern the op at that offset."""
DUPLICATE_OF = "DUPLICATE_OF"
"""A reason in `rejected` that is wanted, with `topics.dedup`; all other reasons are mistakes."""
LANDING_REASONS = (
    OFFSET_USED_BEFORE,
    *("MISSING_REAL_TOPIC", "MISSING_UNIQ_KEY", "MISSING_PRODUCER_GROUP", "ILLEGAL_TOPIC", "TOPIC_NOT_ALLOWED"),
    *("BAD_QUEUE_ID", "NULL_BODY", "BODY_TOO_LARGE", "BAD_BATCH", "BAD_DELAY", "DELAY_TOO_LONG", "BAD_FIRST_HALF"),
    *("BAD_OP", "TRANSACTIONS_REJECTED", DUPLICATE_OF),
)
"""Why landing rejects a record, in the order of the contract (4.9)."""
REJECTED_REASONS = tuple(dict.fromkeys((*(refusal.name for refusal in Refusal), *LANDING_REASONS)))
"""All reasons in `rejected`."""


class Source(IntEnum):
    """The Kafka topic that a segment's messages came from."""

    HALF = 0
    MESSAGES = 1


class Kind(IntEnum):
    """The kind of an input row of a segment."""

    HALF = 0
    PART = 1
    COMMIT = 2
    ROLLBACK = 3
    RESUME = 4
    LISTED = 5
    """A further half message that an op lists."""
    DELAYED = 6
    RECALL = 7
    WAITING = 8
    """A committed half message with a delay."""
    TICK = 9
    """Nothing came, but something is due."""
    HEAD = TICK
    """Of a row in `open_rows`: it has the position and timings of the others, among which is no TICK."""
    UNKNOWN = 10
    """An op that answers a check, and says that the outcome is still unknown."""
    REFUSED_PART = 11
    """A further half message that landing has refused."""


class Event(IntEnum):
    """The kind of an output row of a segment."""

    DECIDED = 1
    """A half message reached its end: `transactions`."""
    DELIVERY = 2
    """A delayed message reached its end: `deliveries`."""
    CHECK = 3
    """A check is due: `checks` and the check topic."""
    CHECK_PART = 4
    """A further half message of a transaction that is checked now: the check's HALF_MESSAGES."""
    REFUSED = 5
    """An op that certainly changes nothing: `rejected`."""
    UNMATCHED_OP = 6
    """An op without an open message: its resolution reads in the tables how the message ended."""
    UNMATCHED_PART = 7
    """A further half message without an open first one: its resolution reads how the first one ended."""
    NEXT_DUE = 8
    """When the segment has to be called next."""
