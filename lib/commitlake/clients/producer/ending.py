"""The end of a transaction, as hooks get it and as the record for Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commitlake.clients.producer.listener import EndTransactionContext
from commitlake.clients.producer.message import LocalTransactionState, Message
from commitlake.clients.producer.transaction import HalfMessage
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A decision that is about to be sent.

    Attributes:
        message: the first half message, as the application made it or as the check shows it.
        first: its record, or the check.
        half_messages: positions of the half messages, the first one first.
        state: the decision.
        remark: the reason, if it needs one.
        check_id: id of the check that it answers; None for the application's own decision.
    """

    message: Message
    first: wire.HalfRecord | wire.CheckRecord
    half_messages: tuple[Position, ...]
    state: LocalTransactionState
    remark: str | None = None
    check_id: str | None = None

    @classmethod
    def of(cls, halves: Sequence[HalfMessage], state: LocalTransactionState, remark: str | None = None) -> Ending:
        """The application's own decision on half messages."""
        places = tuple(half.at for half in halves)
        return cls(message=halves[0].message, first=halves[0].record, half_messages=places, state=state, remark=remark)

    def context(self, group: str, servers: str) -> EndTransactionContext:
        """The argument of hooks."""
        return EndTransactionContext(
            producer_group=group,
            msg_id=self.first.msg_id,
            transaction_id=self.first.transaction_id,
            topic=self.first.topic,
            state=self.state,
            from_check=self.check_id is not None,
            broker_address=servers,
            message=self.message,
        )

    def op(self, group: str) -> wire.OpRecord:
        """The record for Kafka."""
        return wire.OpRecord(
            transaction_id=self.first.transaction_id,
            producer_group=group,
            decision=self.state.value,
            half_messages=self.half_messages[: wire.MAX_HALF_MESSAGES],
            from_check=self.check_id is not None,
            check_id=self.check_id,
            remark=self.remark,
        )
