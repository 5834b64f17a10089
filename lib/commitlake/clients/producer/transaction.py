"""Several half messages under one decision, and the decision as hooks and Kafka get it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from commitlake.clients.producer.listener import EndTransactionContext
from commitlake.clients.producer.message import COMMIT, ROLLBACK, LocalTransactionState, Message, SendResult
from commitlake.errors import ArgumentError, FailedSendError, ProducerError, RefusedSendError
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import MAX_HALF_MESSAGES, CheckRecord, HalfRecord, OpRecord


class HalfMessage(NamedTuple):
    """An acknowledged half message: the application's object, the record that was sent, and its position in `half`."""

    message: Message
    record: HalfRecord
    at: Position

    def acknowledged(self) -> dict[str, Any]:
        """Fields of its `SendResult`."""
        ids = {"msg_id": self.record.msg_id, "transaction_id": self.record.transaction_id}
        return {**ids, "queue_id": self.at.queue, "queue_offset": self.at.offset}


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
    first: HalfRecord | CheckRecord
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

    def op(self, group: str) -> OpRecord:
        """The record for Kafka."""
        return OpRecord(
            transaction_id=self.first.transaction_id,
            producer_group=group,
            decision=self.state.value,
            half_messages=self.half_messages[:MAX_HALF_MESSAGES],
            from_check=self.check_id is not None,
            check_id=self.check_id,
            remark=self.remark,
        )


class Transaction:
    """Made by `TransactionMQProducer.begin_transaction`; all its messages become visible together, or none.

    A `with` block commits at its end, and rolls back when it raises. Checks ask the listener about the first message.
    May be used by several threads.

    Args:
        send_half: sends a half message; its second argument is the first one of the transaction, None for the first.
        send_decision: sends the decision on all half messages, without waiting.
    """

    def __init__(
        self,
        send_half: Callable[[Message, HalfMessage | None], HalfMessage],
        send_decision: Callable[[Sequence[HalfMessage], LocalTransactionState], None],
    ) -> None:
        self._send_half, self._send_decision = send_half, send_decision
        self._halves: list[HalfMessage] = []
        self._ended: LocalTransactionState | None = None
        self._uncertain: BaseException | None = None
        self._lock = threading.RLock()

    @property
    def transaction_id(self) -> str | None:
        """Id of the transaction, None before its first message."""
        return self._halves[0].record.transaction_id if self._halves else None

    def send(self, message: Message) -> SendResult:
        """Send one more half message and wait for its acknowledgement.

        Raises:
            FailedSendError: nothing was sent, and the transaction continues; a `RefusedSendError` when it has ended.
            UncertainSendError: Kafka did not acknowledge the message in time, and the transaction can only roll back.
                The same holds after a signal handler's exception in a send.
        """
        with self._lock:
            self._check_open()
            try:
                half = self._send_half(message, self._halves[0] if self._halves else None)
                self._halves.append(half)
            except (ArgumentError, FailedSendError):
                raise
            except BaseException as error:  # also of a signal handler: a commit would include what may be in Kafka
                self._uncertain = error
                raise
        return SendResult(**half.acknowledged())

    def commit(self) -> None:
        """Make all messages visible; does nothing the second time.

        Raises:
            ProducerError: the transaction was rolled back, or is now, because a send was uncertain or interrupted.
            FailedSendError: the producer was shut down before, so the transaction is still open.
        """
        with self._lock:
            if self._uncertain and not self._ended:
                self.rollback()
                msg = f"rolled back, since one of the messages may or may not be in Kafka: {self._uncertain}"
                raise ProducerError(msg) from self._uncertain
            self._end(COMMIT)

    def rollback(self) -> None:
        """Drop all messages; does nothing the second time.

        Raises:
            ProducerError: the transaction was committed.
        """
        with self._lock:
            self._end(ROLLBACK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._ended is None:
                self.rollback() if error else self.commit()

    def _end(self, state: LocalTransactionState) -> None:
        if self._ended not in (None, state):
            msg = f"the transaction has ended with {self._ended.name}; a decision is final"
            raise ProducerError(msg)
        if self._ended is None:
            self._ended = state
            if self._halves:
                try:
                    self._send_decision(self._halves, state)
                except FailedSendError:
                    self._ended = None
                    raise

    def _check_open(self) -> None:
        if self._ended:
            msg = f"the transaction has ended with {self._ended.name}; begin another one"
            raise RefusedSendError(msg)
        if self._uncertain:
            msg = "the transaction can only roll back, since one of its messages may or may not be in Kafka"
            raise RefusedSendError(msg) from self._uncertain
        if len(self._halves) >= MAX_HALF_MESSAGES:
            msg = f"the transaction has {MAX_HALF_MESSAGES} messages and may have no more; end it and begin another one"
            raise RefusedSendError(msg)
