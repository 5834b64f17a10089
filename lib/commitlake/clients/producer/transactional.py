"""The producer of transactional messages: half message, local transaction, op message, and answers to checks."""

from __future__ import annotations

import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from commitlake.clients import tracing
from commitlake.clients.daemon_pool import DaemonPool
from commitlake.clients.producer.check_reader import Calls, CheckAnswerer
from commitlake.clients.producer.database_transaction import DatabaseTransaction, refuse_without_row, sql_for
from commitlake.clients.producer.default import SHUTDOWN_S, DefaultMQProducer
from commitlake.clients.producer.link import Done
from commitlake.clients.producer.listener import AnyHook, TransactionListener, Verdict, decide, failed, run_hooks
from commitlake.clients.producer.message import (
    ROLLBACK,
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionSendResult,
)
from commitlake.clients.producer.plain import milliseconds
from commitlake.clients.producer.record_maker import NO_PROOF, Proof, topic_of
from commitlake.clients.producer.transaction import Ending, HalfMessage, Transaction
from commitlake.errors import ArgumentError, FailedSendError, RefusedSendError, UndecidedError
from commitlake.kafka.throttled import IgnoredRecords
from commitlake.protocol import wire
from commitlake.protocol.durations import Duration
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import HALF, OP

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Number of remembered half messages that are never committed, the newest ones; older ones' checks ask the listener."""
NEVER_COMMITTED = "the local transaction did not run, or was rolled back"
NO_LISTENER = "a transactional send needs a listener; pass one to the constructor or set_transaction_listener()"
_METHODS = ("execute_local_transaction", "check_local_transaction")
_TOO_LATE = (
    "the producer was shut down before this decision, and did not send it: a check will ask the listener; end "
    "transactions before shutdown()"
)
_SEND_AGAIN = "if Kafka has it, it is rolled back: send the same Message object again, in another transaction"


class TransactionMQProducer(DefaultMQProducer):
    """Sends messages that become visible when the local transaction of its listener commits.

    Any instance of a group answers the checks of the whole group, so a listener must be able to look up every
    transaction of its group. An instance without a listener answers none.

    Args:
        group: producer group.
        listener: runs and looks up local transactions.
        executor: answers checks, instead of a pool of 5 threads; the producer does not shut it down.
        check_timeout: how long a listener call for a check may take. When no call returns for so long, this instance
            leaves the group until one returns, so that other instances answer.

    The other arguments are those of `DefaultMQProducer`.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None = None,
        *,
        bootstrap_servers: str | Sequence[str],
        topic_prefix: str = "commitlake.",
        options: Mapping[str, str] | None = None,
        client_options: Mapping[str, Any] | None = None,
        send_msg_timeout: Duration = 3,
        start_timeout: Duration = 10,
        engine: str = "kafka-python",
        executor: Executor | None = None,
        check_timeout: Duration = 30,
    ) -> None:
        super().__init__(
            group,
            bootstrap_servers=bootstrap_servers,
            topic_prefix=topic_prefix,
            options=options,
            client_options=client_options,
            send_msg_timeout=send_msg_timeout,
            start_timeout=start_timeout,
            engine=engine,
        )
        self._listener = self._checked_listener(listener)
        self._executor, self._check_timeout_s = executor, milliseconds("check_timeout", check_timeout) / 1_000
        self._hooks: list[AnyHook] = []
        self._is_warned = False
        self._never_committed, self._decided = _Recent(), _Recent()
        self._checks: CheckAnswerer | None = None
        self._ignored: IgnoredRecords | None = None
        self._late = DaemonPool(1, "commitlake-late")

    def start(self) -> None:
        """Connect, and begin to answer checks if there is a listener."""
        super().start()
        self._late = DaemonPool(1, "commitlake-late")
        self._answer_checks()

    def shutdown(self, timeout: Duration = SHUTDOWN_S) -> None:
        """Wait for running answers to checks, send buffered records, and disconnect.

        Args:
            timeout: then running listener calls and unacknowledged records are given up; checks ask again.
        """
        until = time.monotonic() + milliseconds("timeout", timeout) / 1_000
        with self._switch:
            checks, self._checks = self._checks, None
        try:
            if checks:
                checks.stop(until)
        except BaseException:  # raised by a signal handler: the next shutdown continues
            self._checks = checks
            raise
        if self._running:
            self._link.flush(max(0.0, until - time.monotonic()) / 2)
        self._late.stop(max(0.0, until - time.monotonic()) / 2)
        super().shutdown(timedelta(seconds=max(0.0, until - time.monotonic())))

    @property
    def ignored_checks(self) -> int:
        """Records of `check` that were malformed, or could not be answered, since the last start."""
        return self._ignored.count if self._ignored else 0

    def set_transaction_listener(self, listener: TransactionListener) -> None:
        """Set the listener, also while running.

        Raises:
            ArgumentError: the object is no listener, or its methods are coroutine functions.
        """
        self._listener = self._checked_listener(listener)
        if self._running:  # else `start` does it; so this call does not wait for a running start or shutdown
            self._answer_checks()

    def register_end_transaction_hook(self, hook: AnyHook) -> None:
        """Call `hook`, a callable or an object with `end_transaction`, before every decision that is sent.

        Raises:
            ArgumentError: the hook can't be called, or is a coroutine function.
        """
        if not callable(getattr(hook, "end_transaction", hook)):
            msg = f"{hook!r:.200} is no hook; give a callable, or an object with a method end_transaction"
            raise ArgumentError(msg)
        self._check_plain(hook, "__call__", "end_transaction")
        self._hooks.append(hook)

    def send_message_in_transaction(self, message: Message, arg: object = None) -> TransactionSendResult:
        """Send a half message, run the listener's local transaction, and send its decision.

        Args:
            message: its `transaction_id` is set before the listener is called.
            arg: passed to the listener.

        Raises:
            FailedSendError: nothing was sent, and the local transaction has not run. After a `RefusedSendError` the
                unchanged message would be refused again.
            UncertainSendError: Kafka did not acknowledge the half message in time. The local transaction has not run,
                and a half message that may be in Kafka is rolled back.
        """
        listener = self._listener
        if listener is None:
            raise RefusedSendError(NO_LISTENER)
        half = self.send_half(message)
        try:
            decision = decide(lambda: listener.execute_local_transaction(message, arg), tracing.executing(half.record))
        except BaseException as error:  # such as SystemExit: passed on, but the decision is still open
            self._end_with(Ending.of([half], *failed(error)[:2]), log_lost)
            raise
        self._end_with(Ending.of([half], *decision[:2]), log_lost)
        return sent_result(half, decision)

    def begin_transaction(self, *, is_answered: bool = False, database: object = None) -> Transaction:
        """Begin a transaction of several half messages; `commit`, `rollback` or the end of its `with` block ends it.

        Without a listener nobody can answer its checks after a crash: it stays open until `transaction.retention` or an
        administrator ends it.

        Args:
            is_answered: a rule of the coordinator answers the checks, so do not warn that a listener is missing. If the
                coordinator publishes the groups with a rule, these count instead.
            database: a connection of sqlite3, psycopg 3 or Django, or a connection or session of SQLAlchemy. Its
                transaction ends with this one, or this one with Django's outermost `atomic`. A row of it proves the
                commit to a `DatabaseListener`, or to a rule of the coordinator.

        Raises:
            ArgumentError: `database` is no such connection, or is left out where the listener looks at rows only.
            ProducerError: its database has no table for the row.
        """
        self.warn_if_unanswered(is_answered, database)

        def send_decision(halves: Sequence[HalfMessage], state: LocalTransactionState) -> None:
            if state is not ROLLBACK and database is None and not self._running:
                raise FailedSendError(_TOO_LATE)
            self._end_with(self.decided(halves, state), log_lost)

        if database is None:
            return Transaction(self.send_half, send_decision)
        return DatabaseTransaction(self.send_half, send_decision, sql_for(database, self._listener))

    @property
    def listener(self) -> TransactionListener | None:
        """The listener."""
        return self._listener

    def warn_if_unanswered(self, is_answered: bool, database: object) -> None:
        """Warn, once, that nobody will answer the checks of a transaction: there is no listener, and no rule."""
        ruled = self._link.settings.ruled_groups if self._running else None
        has_rule = is_answered if ruled is None else self.group in ruled
        refuse_without_row(self._listener, is_answered or has_rule or database is not None)
        if self._listener is None and not self._is_warned and not has_rule:
            self._is_warned = True
            log.warning(
                "the group %s begins transactions without a listener, and there is no rule for it: when this process "
                "dies before a decision, nobody answers their checks, and they stay open until "
                "transaction.retention; give the producer a listener, or the coordinator a rule (configuration key "
                "checks)",
                self.group,
            )

    def _checked_listener(self, listener: Any) -> TransactionListener | None:
        if listener is not None and not any(hasattr(listener, name) for name in _METHODS):
            msg = f"{listener!r:.200} is no listener, allowed is an object with the methods {' and '.join(_METHODS)}"
            raise ArgumentError(msg)
        self._check_plain(listener, *_METHODS)
        return listener  # type: ignore[no-any-return]

    def _check_plain(self, given: object, *names: str) -> None:
        """Refuse coroutine functions, which nothing would await here."""
        for function in (given, *(getattr(given, name, None) for name in names)):
            if inspect.iscoroutinefunction(function):
                msg = f"{function!r} is a coroutine function; use AsyncTransactionMQProducer, or give a plain function"
                raise ArgumentError(msg)

    def _answer_checks(self) -> None:
        with self._switch:
            if self._running and self._checks is None and self._listener is not None:
                self._checks = checks = CheckAnswerer(
                    self._link, self.group, self._answer, self._executor, self._check_timeout_s
                )
                self._ignored = checks.ignored
                is_begun = False
                try:
                    checks.start()
                    is_begun = self._running  # False if a signal handler has shut down meanwhile
                finally:
                    if not is_begun:  # also if no thread could be started; the next start begins the checks
                        self._checks = None
                        checks.stop(time.monotonic())

    def send_half(self, message: Message, first: HalfMessage | None = None, proof: Proof = NO_PROOF) -> HalfMessage:
        """Send a half message, after `first` or as the first of its transaction; `proof` says who answers checks."""
        with tracing.sending(topic_of(message)) as span:
            return self._sent(message, first, proof, span)

    def _sent(self, message: Message, first: HalfMessage | None, proof: Proof, span: tracing.Traced) -> HalfMessage:
        with self._refusing(tracing.carried()) as maker:
            record = maker.half(message, first and first.record, first and first.at, proof)
            encoded = wire.encode_half(record)
        span.sends(record)
        message.take_part_in(record.transaction_id)
        late = None if first else partial(self._roll_back_late, message, record)
        send = partial(self._send_record, HALF, encoded, advice=_SEND_AGAIN)
        try:
            return HalfMessage(message, record, send(late=late))
        except FailedSendError:
            raise
        except BaseException:  # uncertain, or interrupted by a signal handler
            self._never_committed.add(_attempt(record), ROLLBACK)
            raise

    def _roll_back_late(self, message: Message, record: wire.HalfRecord, at: Position) -> None:
        """Roll back a half message that was acknowledged late: the application may have sent another one instead."""
        half = HalfMessage(message, record, at)
        with suppress(RuntimeError):  # raised after a shutdown; then a check asks
            self._late.submit(self._end_with, Ending.of([half], ROLLBACK, NEVER_COMMITTED), log_lost)

    def decided(self, halves: Sequence[HalfMessage], state: LocalTransactionState) -> Ending:
        """The end of a transaction of several half messages; checks of a rolled back one don't ask the listener."""
        if state is ROLLBACK:
            self._never_committed.add(_attempt(halves[0].record), ROLLBACK)
        return Ending.of(halves, state)

    def _answer(self, check: wire.CheckRecord, calls: Calls, done: Done) -> None:
        message, found, listener = MessageExt.from_check(check), self._known(check), self._listener
        if found is None:
            assert listener is not None
            try:
                with calls.one():
                    # SystemExit counts too: in a thread of the pool nobody else would see it.
                    ask = lambda: listener.check_local_transaction(message)  # noqa: E731
                    found = decide(ask, tracing.checking(check), BaseException)
            except UndecidedError as error:
                unanswered(message, error, done)
                return
        self._end_with(self._answered(check, message, *found[:2]), done)

    def _known(self, check: wire.CheckRecord) -> Verdict | None:
        """The answer to a check, if it is known without asking the listener; else None."""
        if _attempt(check) in self._never_committed:
            return Verdict(ROLLBACK, NEVER_COMMITTED)
        decided = self._decided.get(f"{check.msg_id} {check.check_id}")  # a repeated check gets the same answer
        if decided is not None:
            return Verdict(decided, None)
        return None if self._listener else Verdict(LocalTransactionState.UNKNOW, "this instance has no listener")

    def _answered(
        self, check: wire.CheckRecord, message: MessageExt, state: LocalTransactionState, remark: str | None
    ) -> Ending:
        if state is not LocalTransactionState.UNKNOW:
            self._decided.add(f"{check.msg_id} {check.check_id}", state)
        return Ending(
            message=message,
            first=check,
            half_messages=check.half_messages,
            state=state,
            remark=remark,
            check_id=check.check_id,
        )

    def _end_with(self, ending: Ending, done: Done) -> None:
        """Call the hooks, then send a decision without waiting; if it is lost, a check asks for it again."""
        run_hooks(self._hooks, ending.context(self.group, self._link.kafka.bootstrap_servers))
        self._send_op(ending, done)

    def _send_op(self, ending: Ending, done: Done) -> None:
        record = wire.encode_op(ending.op(self.group))
        self._link.send_soon(OP, ending.half_messages[0].queue, record, self._send_ms, done)


def sent_result(half: HalfMessage, decision: Verdict) -> TransactionSendResult:
    """The result of a transactional send."""
    return TransactionSendResult(
        **half.acknowledged(), local_transaction_state=decision.state, exception=decision.exception
    )


def _attempt(half: wire.HalfRecord | wire.CheckRecord) -> str:
    """Key of one send of a first half message: the same message, with the same id, may be sent several times."""
    return f"{half.born_timestamp} {half.transaction_id} {half.msg_id}"


class _Recent(OrderedDict[str, LocalTransactionState]):
    """The newest decisions, by id. Without a lock: the code that a signal handler interrupts might hold it."""

    def add(self, name: str, decision: LocalTransactionState) -> None:
        self[name] = decision
        if len(self) > REMEMBERED:
            self.popitem(last=False)


def unanswered(message: Message, why: UndecidedError, done: Done) -> None:
    """Give a check no answer: it is asked again, and an answer UNKNOWN would count towards a discard."""
    log.warning("the listener can't answer the check of the transaction %s yet: %s", message.transaction_id, why)
    done(None)


def log_lost(error: BaseException | None) -> None:
    """Warn if a decision was not acknowledged; called with the outcome of its send."""
    if error:
        log.warning("Kafka did not acknowledge a decision; a check will ask for it again: %s", error)
