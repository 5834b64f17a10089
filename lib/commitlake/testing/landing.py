"""Landing without Spark: a Kafka record becomes a message or op that coordination reads, or is rejected."""

from __future__ import annotations

from hashlib import blake2b

from commitlake.errors import RecordError
from commitlake.protocol import headers, wire
from commitlake.protocol.encoding import Position, texts
from commitlake.protocol.kafka_topics import ADMIN, HALF, MESSAGES
from commitlake.protocol.states import Kind
from commitlake.testing.codecs import Limits, decode_half, decode_message, decode_op
from commitlake.testing.records import LandedMessage, LandedOp

LandedRecord = wire.HalfRecord | wire.MessageRecord | wire.OpRecord | wire.RecallRecord
_MOST_IMMUNITY_S = 2**31 - 1
_NO_CHECK = (-2, -2)  # the answer names a check of another transaction, or an impossible one


def hashed(text: str) -> int:
    """The 64-bit number that stands for a text in a segment."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


def read(source: str, record: wire.Encoded, limits: Limits) -> LandedRecord:
    """Decode a record of a Kafka topic, named without its prefix.

    Raises:
        RecordError: with the reason that it has in `rejected`.
    """
    if source == HALF:
        return decode_half(*record, limits)
    if source == MESSAGES:
        return decode_message(*record, limits)
    return decode_op(record.value, admin=source == ADMIN)


def half_message(record: wire.HalfRecord, at: Position, limits: Limits) -> LandedMessage:
    """A half message as coordination reads it."""
    if record.first_half == at:
        msg = f"FIRST_HALF is '{at}', which is the half message itself; name another one"
        raise RecordError(msg, "BAD_FIRST_HALF")
    given = limits.delay(record)
    return LandedMessage(
        at,
        limits.stored,
        record.first_half,
        tid=hashed(record.transaction_id),
        group=hashed(record.producer_group or ""),
        immunity=-1 if record.check_immunity_s is None else min(record.check_immunity_s, _MOST_IMMUNITY_S),
        delay=-1 if given is None or given.relative_ms is None else given.relative_ms,
        deliver_at=-1 if given is None or given.deliver_at is None else given.deliver_at,
    )


def refused_part(source: str, record: wire.Encoded, at: Position, stored: int) -> LandedMessage | None:
    """A rejected half message as coordination reads it: it spoils the transaction of which it is a part; else None."""
    found = {name: text for name, text in texts(record.headers).items() if text}
    group, tid = found.get(headers.PGROUP), found.get(headers.TRANSACTION_ID) or found.get(headers.UNIQ_KEY)
    try:
        first = Position.parse(found.get(headers.FIRST_HALF, ""))
    except RecordError:
        return None
    if source != HALF or not group or not tid:
        return None
    return LandedMessage(at, stored, first, hashed(tid), hashed(group), refused=True)


def delayed_message(record: wire.MessageRecord, at: Position, limits: Limits) -> LandedMessage | None:
    """A delayed message as coordination reads it; None for a normal one, which needs no coordination."""
    given = limits.delay(record)
    if given is None:
        return None
    return LandedMessage(
        at,
        limits.stored,
        tid=hashed(record.msg_id),
        group=hashed(record.topic),
        deliver_at=given.due(limits.stored),
        delayed=True,
    )


def op(record: wire.OpRecord | wire.RecallRecord, at: Position, stored: int, *, is_admin: bool) -> LandedOp | None:
    """An op as coordination reads it; None for an UNKNOWN that answers no check, which changes nothing."""
    if isinstance(record, wire.RecallRecord):
        tid, group = hashed(record.msg_id), hashed(record.topic)
        return LandedOp(at, stored, Kind.RECALL, (record.message,), tid, group)
    answers = not is_admin and (record.from_check or record.check_id is not None)
    if record.decision == "UNKNOWN" and not answers:
        return None
    return LandedOp(
        at,
        stored,
        Kind[record.decision],
        tuple(dict.fromkeys(record.half_messages)),
        tid=hashed(record.transaction_id),
        group=hashed(record.producer_group or ""),
        admin=is_admin,
        from_check=record.from_check,
        check=_named_check(record),
    )


def _named_check(record: wire.OpRecord) -> tuple[int, int] | None:
    """Round and number in a CHECK_ID `<queue>-<offset>-<round>-<n>`; None when the op names no check."""
    if record.check_id is None:
        return None
    own, _, numbers = record.check_id.partition(f"{record.half_messages[0]}-")
    round_, _, number = numbers.partition("-")
    return (int(round_), int(number)) if not own and round_.isdecimal() and number.isdecimal() else _NO_CHECK
