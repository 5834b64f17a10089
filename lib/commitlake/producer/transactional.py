"""The producer of transactional messages: half message, local transaction, op message, and answers to checks."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from commitlake.errors import MQClientException, UncertainSend
from commitlake.producer.check_reader import CheckAnswerer
from commitlake.producer.default import SHUTDOWN_MS, DefaultMQProducer
from commitlake.producer.link import Done
from commitlake.producer.listener import AnyHook, EndTransactionContext, TransactionListener, decide, failed, run_hooks
from commitlake.producer.message import LocalTransactionState, Message, MessageExt, SendStatus, TransactionSendResult
from commitlake.producer.timeouts import Timeout, milliseconds
from commitlake.producer.transaction import HalfMessage, Transaction
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import HALF, OP

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Half messages that are never committed, the newest ones; a check of an older one asks the listener."""
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
NEVER_COMMITTED = "the local transaction did not run, or was rolled back"
_SEND_AGAIN = "if it is there it is rolled back, so send the same Message object again, in another transaction"


class TransactionMQProducer(DefaultMQProducer):
    """Sends messages that become visible when the local transaction of its listener commits.

    Any instance of a group answers the checks of the whole group, so a listener must be able to look up every
    transaction of its group. An instance without a listener answers none.

    Args:
        group: producer group.
        listener: runs and looks up local transactions.
        bootstrap_servers: Kafka's `host:port,...`; this and the next five are as for `DefaultMQProducer`.
        topic_prefix: the coordinator's `kafka.topic_prefix`.
        options: the coordinator's `kafka.options`.
        client_options: more keyword arguments of kafka-python's clients.
        send_msg_timeout: in ms.
        start_timeout: in ms.
        executor: answers checks, instead of a pool of 5 threads; the producer does not shut it down.
        check_timeout: ms a listener call that answers a check may take. When no call returns for so long, this instance
            leaves the group until one does, so that others answer.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None = None,
        *,
        bootstrap_servers: str,
        topic_prefix: str = "commitlake.",
        options: Mapping[str, str] | None = None,
        client_options: Mapping[str, Any] | None = None,
        send_msg_timeout: Timeout = 3_000,
        start_timeout: Timeout = 10_000,
        executor: Executor | None = None,
        check_timeout: Timeout = 30_000,
    ) -> None:
        super().__init__(
            group,
            bootstrap_servers=bootstrap_servers,
            topic_prefix=topic_prefix,
            options=options,
            client_options=client_options,
            send_msg_timeout=send_msg_timeout,
            start_timeout=start_timeout,
        )
        self._listener = listener
        self._executor, self._check_timeout_s = executor, milliseconds("check_timeout", check_timeout) / 1_000
        self._hooks: list[AnyHook] = []
        self._is_warned = False
        self._never_committed, self._decided = _Recent(REMEMBERED), _Recent(REMEMBERED)
        self._checks: CheckAnswerer | None = None
        self._late = ThreadPoolExecutor(1, "commitlake-late")

    def start(self) -> None:
        """Connect, and begin to answer checks if there is a listener."""
        super().start()
        self._late = ThreadPoolExecutor(1, "commitlake-late")
        self._answer_checks()

    def shutdown(self, timeout: Timeout = SHUTDOWN_MS) -> None:
        """Wait for the answers under way, send what is buffered, and disconnect.

        Args:
            timeout: ms after which listener calls that have not returned, and what Kafka has not acknowledged, are
                given up; checks ask for them again.
        """
        until = time.monotonic() + milliseconds("timeout", timeout) / 1_000
        with self._switch:
            checks, self._checks = self._checks, None
        if checks:
            checks.stop(until)
        if self._running:
            self._link.flush(max(0.0, until - time.monotonic()) / 2)
        self._late.shutdown()
        super().shutdown(max(0, round((until - time.monotonic()) * 1_000)))

    def set_transaction_listener(self, listener: TransactionListener) -> None:
        """Set the listener, also while running."""
        self._listener = listener
        if self._running:
            self._answer_checks()

    def register_end_transaction_hook(self, hook: AnyHook) -> None:
        """Call `hook`, a callable or an object with `end_transaction`, before every decision that is sent."""
        self._hooks.append(hook)

    def send_message_in_transaction(self, message: Message, arg: object = None) -> TransactionSendResult:
        """Send a half message, run the listener's local transaction, and send its decision.

        Args:
            message: its `transaction_id` is set before the listener is called.
            arg: passed to the listener.

        Raises:
            MQClientException: refused, with `reason`. The local transaction has not run.
            UncertainSend: not acknowledged in time; it has not run, and what may be in Kafka is rolled back.
        """
        listener = self._listener
        if listener is None:
            msg = "a transactional send needs a listener; pass one to the constructor or set_transaction_listener()"
            raise MQClientException(msg)
        half = self._send_half(message)
        try:
            state, remark = decide(lambda: listener.execute_local_transaction(message, arg))
        except BaseException as error:  # SystemExit, CancelledError: not ours to keep, but the decision is still open
            self._send_decision([half], *failed(error))
            raise
        self._send_decision([half], state, remark)
        return TransactionSendResult(
            send_status=SendStatus.SEND_OK,
            msg_id=half.record.msg_id,
            queue_id=half.at.queue,
            queue_offset=half.at.offset,
            transaction_id=half.record.transaction_id,
            local_transaction_state=state,
        )

    def begin_transaction(self, *, is_answered: bool = False) -> Transaction:
        """Begin a transaction of several half messages; `commit`, `rollback` or its `with` block ends it.

        Without a listener nobody can answer for it after a crash: it stays open until `transaction.retention` or an
        administrator ends it.

        Args:
            is_answered: a rule of the coordinator answers its checks, so no listener is missed.
        """
        if self._listener is None and not is_answered and not self._is_warned:
            self._is_warned = True
            log.warning(
                "the group %s begins transactions without a listener: when this process dies before a decision, nobody "
                "answers their checks, and they stay open until transaction.retention",
                self.group,
            )
        return Transaction(self._send_half, self._end)

    def _answer_checks(self) -> None:
        with self._switch:
            if self._checks is None and self._listener is not None:
                self._checks = CheckAnswerer(
                    self._link, self.group, self._answer, self._executor, self._check_timeout_s
                )
                self._checks.start()

    def _send_half(self, message: Message, first: HalfMessage | None = None) -> HalfMessage:
        with self._refusing() as maker:
            record = maker.half(message, *((first.record, first.at) if first else ()))
            encoded = wire.encode_half(record)
        message.take_part_in(record.transaction_id)
        late = None if first else partial(self._roll_back_late, message, record)
        send = partial(self._send_record, HALF, record.sharding_key, encoded, advice=_SEND_AGAIN)
        try:
            return HalfMessage(message, record, send(late=late))
        except UncertainSend:
            self._never_committed.add(_attempt(record), ROLLBACK)
            raise

    def _roll_back_late(self, message: Message, record: wire.HalfRecord, at: Position) -> None:
        """Its send has failed for the application, which may have sent another one for the same business."""
        with suppress(RuntimeError):  # after a shutdown; then a check asks
            self._late.submit(self._send_op, message, record, (at,), ROLLBACK, NEVER_COMMITTED, _log_lost)

    def _end(self, halves: Sequence[HalfMessage], state: LocalTransactionState) -> None:
        """End a transaction of several half messages; checks of one rolled back no longer ask the listener."""
        if state is ROLLBACK:
            self._never_committed.add(_attempt(halves[0].record), ROLLBACK)
        self._send_decision(halves, state)

    def _send_decision(
        self, halves: Sequence[HalfMessage], state: LocalTransactionState, remark: str | None = None
    ) -> None:
        """Send the decision without waiting; if it is lost, a check asks for it again."""
        first = halves[0]
        self._send_op(first.message, first.record, tuple(half.at for half in halves), state, remark, _log_lost)

    def _answer(self, check: wire.CheckRecord, done: Done) -> None:
        message = MessageExt.from_check(check)
        state, remark = self._look_up(check, message)
        if state is not LocalTransactionState.UNKNOW:
            self._decided.add(f"{check.msg_id} {check.check_id}", state)
        self._send_op(message, check, check.half_messages, state, remark, done, check.check_id)

    def _look_up(self, check: wire.CheckRecord, message: MessageExt) -> tuple[LocalTransactionState, str | None]:
        listener = self._listener
        if self._never_committed.get(_attempt(check)):
            return ROLLBACK, NEVER_COMMITTED
        decided = self._decided.get(f"{check.msg_id} {check.check_id}")  # the same question again has the same answer
        if decided is not None:
            return decided, None
        if listener is None:
            return LocalTransactionState.UNKNOW, "this instance has no listener"
        try:
            return decide(lambda: listener.check_local_transaction(message))
        except BaseException as error:  # in a thread of the pool, which nobody else watches
            return failed(error)

    def _send_op(
        self,
        message: Message,
        first: wire.HalfRecord | wire.CheckRecord,
        half_messages: tuple[Position, ...],
        state: LocalTransactionState,
        remark: str | None,
        done: Done,
        check_id: str | None = None,
    ) -> None:
        context = EndTransactionContext(
            producer_group=self.group,
            msg_id=first.msg_id,
            transaction_id=first.transaction_id,
            topic=first.topic,
            state=state,
            from_check=check_id is not None,
            broker_address=self._link.kafka.bootstrap_servers,
            message=message,
        )
        run_hooks(self._hooks, context)
        op = wire.OpRecord(
            transaction_id=first.transaction_id,
            producer_group=self.group,
            decision=state.value,
            half_messages=half_messages[: wire.MAX_HALF_MESSAGES],
            from_check=check_id is not None,
            check_id=check_id,
            remark=remark,
        )
        self._link.send_soon(OP, half_messages[0].queue, wire.encode_op(op), done)


def _attempt(half: wire.HalfRecord | wire.CheckRecord) -> str:
    """What tells one send of a first half message from others: the same message, and id, may be sent again."""
    return f"{half.born_timestamp} {half.transaction_id} {half.msg_id}"


class _Recent:
    """The newest `most` of the decisions added, by id."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._decisions: OrderedDict[str, LocalTransactionState] = OrderedDict()
        self._lock = Lock()

    def add(self, name: str, decision: LocalTransactionState) -> None:
        with self._lock:
            self._decisions[name] = decision
            if len(self._decisions) > self._most:
                self._decisions.popitem(last=False)

    def get(self, name: str) -> LocalTransactionState | None:
        with self._lock:
            return self._decisions.get(name)


def _log_lost(error: Exception | None) -> None:
    if error:
        log.warning("a decision was not acknowledged by Kafka, and a check will ask for it again: %s", error)
