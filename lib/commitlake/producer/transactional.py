"""The producer of transactional messages: half message, local transaction, op message, and answers to checks."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from threading import Lock

from commitlake.errors import MQClientException
from commitlake.producer.check_reader import CheckAnswerer, Done
from commitlake.producer.default import DefaultMQProducer
from commitlake.producer.link import UncertainSend
from commitlake.producer.listener import AnyHook, EndTransactionContext, TransactionListener, decide, run_hooks
from commitlake.producer.message import LocalTransactionState, Message, MessageExt, SendStatus, TransactionSendResult
from commitlake.producer.transaction import HalfMessage, Transaction
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import HALF, OP

log = logging.getLogger(__name__)

UNCERTAIN_KEPT = 10_000
"""Uncertain sends remembered; the oldest is forgotten first, and its check then asks the listener."""
NEVER_RUN = "the local transaction was never run, or was rolled back"


class TransactionMQProducer(DefaultMQProducer):
    """Sends messages that become visible when the local transaction of its listener commits.

    Any instance of a group answers the checks of the whole group, so a listener must be able to look every transaction
    of its group up. Without a listener an instance answers none.

    Args:
        group: producer group.
        listener: runs and looks up local transactions.
        executor: runs the answers to checks, instead of a pool of 5 threads; it is not shut down by the producer.
        bootstrap_servers, topic_prefix, options, send_msg_timeout, start_timeout: as for `DefaultMQProducer`.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None = None,
        *,
        bootstrap_servers: str,
        topic_prefix: str = "commitlake.",
        options: Mapping[str, str] | None = None,
        send_msg_timeout: int = 3_000,
        start_timeout: int = 10_000,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(
            group,
            bootstrap_servers=bootstrap_servers,
            topic_prefix=topic_prefix,
            options=options,
            send_msg_timeout=send_msg_timeout,
            start_timeout=start_timeout,
        )
        self._listener = listener
        self._executor = executor
        self._hooks: list[AnyHook] = []
        self._uncertain = _Recent(UNCERTAIN_KEPT)
        self._checks: CheckAnswerer | None = None

    def start(self) -> None:
        """Connect, and begin to answer checks when there is a listener."""
        super().start()
        self._answer_checks()

    def shutdown(self) -> None:
        """Finish the checks that are being answered, send what is buffered, disconnect."""
        with self._switch:
            checks, self._checks = self._checks, None
        if checks:
            checks.stop()
        super().shutdown()

    def set_transaction_listener(self, listener: TransactionListener) -> None:
        """Set the listener, also while running."""
        self._listener = listener
        if self._running:
            self._answer_checks()

    def register_end_transaction_hook(self, hook: AnyHook) -> None:
        """Have `hook` told of every decision before it is sent: a callable, or an object with `end_transaction`."""
        self._hooks.append(hook)

    def send_message_in_transaction(self, message: Message, arg: object = None) -> TransactionSendResult:
        """Send a half message, run the listener's local transaction, and send its decision.

        Args:
            message: its `transaction_id` is set before the listener is called.
            arg: handed to the listener.

        Raises:
            MQClientException: refused, with `reason`, or not acknowledged in time. The local transaction has not run.
        """
        listener = self._listener
        if listener is None:
            msg = "a transactional send needs a listener; give one to the constructor or set_transaction_listener()"
            raise MQClientException(msg)
        half = self._send_half(message)
        state, remark = decide(lambda: listener.execute_local_transaction(message, arg))
        self._end([half], state, remark)
        return TransactionSendResult(
            send_status=SendStatus.SEND_OK,
            msg_id=half.record.msg_id,
            queue_id=half.at.queue,
            queue_offset=half.at.offset,
            transaction_id=half.record.transaction_id,
            local_transaction_state=state,
        )

    def begin_transaction(self) -> Transaction:
        """Begin a transaction of several half messages, ended by its `commit` or `rollback`, or as a `with` block."""
        return Transaction(self)

    def _answer_checks(self) -> None:
        with self._switch:
            if self._checks is None and self._listener is not None:
                self._checks = CheckAnswerer(self._link, self.group, self._answer, self._executor)
                self._checks.start()

    def _send_half(self, message: Message, first: HalfMessage | None = None) -> HalfMessage:
        with self._refusing() as maker:
            record = maker.half(message, *(first if first else ()))
            encoded = wire.encode_half(record)
        message.msg_id, message.transaction_id = record.msg_id, record.transaction_id
        try:
            return HalfMessage(record, self._send_record(HALF, record.sharding_key, encoded))
        except UncertainSend:
            # The message id, not the transaction id: the application may try again under the same transaction id.
            self._uncertain.add(record.msg_id)
            raise

    def _end(self, halves: Sequence[HalfMessage], state: LocalTransactionState, remark: str | None = None) -> None:
        """Send the decision without waiting; a check heals what is lost."""
        first = halves[0].record
        self._send_op(first, tuple(half.at for half in halves), state, remark, _log_lost)

    def _forget(self, half: HalfMessage) -> None:
        """Have later checks of a transaction rolled back by this process answered without the listener."""
        self._uncertain.add(half.record.msg_id)

    def _answer(self, check: wire.CheckRecord, done: Done) -> None:
        listener = self._listener
        remark: str | None = NEVER_RUN
        state = LocalTransactionState.ROLLBACK_MESSAGE
        if check.msg_id not in self._uncertain:
            message = MessageExt.from_check(check)
            state, remark = decide(lambda: listener.check_local_transaction(message) if listener else None)
        self._send_op(check, check.half_messages, state, remark, done, from_check=True)

    def _send_op(
        self,
        first: wire.HalfRecord | wire.CheckRecord,
        half_messages: tuple[Position, ...],
        state: LocalTransactionState,
        remark: str | None,
        done: Done,
        *,
        from_check: bool = False,
    ) -> None:
        context = EndTransactionContext(
            producer_group=self.group,
            msg_id=first.msg_id,
            transaction_id=first.transaction_id,
            topic=first.topic,
            state=state,
            from_check=from_check,
            broker_address=self._link.kafka.bootstrap_servers,
        )
        run_hooks(self._hooks, context)
        op = wire.OpRecord(
            transaction_id=first.transaction_id,
            producer_group=self.group,
            decision=state.value,
            half_messages=half_messages[: wire.MAX_HALF_MESSAGES],
            from_check=from_check,
            remark=remark,
        )
        self._link.send_soon(OP, half_messages[0].queue, wire.encode_op(op), done)


class _Recent:
    """The newest `most` of the ids added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()

    def add(self, value: str) -> None:
        with self._lock:
            self._ids[value] = None
            if len(self._ids) > self._most:
                self._ids.popitem(last=False)

    def __contains__(self, value: str) -> bool:
        with self._lock:
            return value in self._ids


def _log_lost(error: Exception | None) -> None:
    if error:
        log.warning("A decision was not acknowledged by Kafka (%s); a check will ask for it again", error)
