"""Reads committed messages one by one, without Spark: `commitlake.consume`."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from commitlake import config as configuration
from commitlake.clients.consumer.arguments import Start, Tags, checked_group, seconds, start_ms, topics_of
from commitlake.clients.consumer.filters import Filter
from commitlake.clients.consumer.message import FORKED, MessageBatch, ReceivedMessage
from commitlake.clients.consumer.runner import PAUSES, Handler, Runner, awaiting, traced
from commitlake.clients.consumer.subscription import ReadOptions, Subscription
from commitlake.clients.renamed import renamed
from commitlake.config import object_store
from commitlake.errors import ConsumerError, NoTableError
from commitlake.protocol.durations import Duration
from commitlake.reading.catalog import check_readable
from commitlake.reading.forks import refuse_fork
from commitlake.reading.table import Options
from commitlake.spark.process import Stop, stopped_by_signals

log = logging.getLogger(__name__)

T = TypeVar("T")


def consume(
    conf: configuration.Conf,
    topic: str | list[str],
    *,
    group: str,
    tags: Tags | None = None,
    where: str | None = None,
    start: Start = "first",
    follow: bool = True,
    poll: Duration = "1s",
    lease: Duration = "15s",
    storage_options: Options = None,
) -> Consumer:
    """Read the committed messages of a topic, or of several, for a group of consumers.

    At least once: a message is redelivered when its instance ends before `done` was called and its receipt written.
    Writing takes up to a second, or a few seconds in a process with hundreds of groups. Instances of a group share the
    topic by queue.

    Args:
        conf: the coordinator's configuration, its path, or its keys and values; `warehouse`, `catalog`,
            `receipts` and `receipts.retention` count.
        topic: the topic, or a list of topics; `message.topic` tells them apart.
        group: the group; each group gets all messages.
        tags: a tag, tags joined by `||`, or a list of tags; None or `*` for all.
        where: an SQL condition on properties, for example `region = 'eu' AND amount > 10`.
        start: where a group begins that has never read the topic: `first`, `newest`, or a time (ms since epoch, UTC, or
            an aware datetime).
        follow: wait for new messages; False ends the iteration after the last message that is visible as it begins.
        poll: how often to look for new messages.
        lease: an instance without a sign of life for so long loses its queues.
        storage_options: deltalake's options for object stores.

    Returns:
        The consumer, which iterates over the messages until SIGTERM, SIGINT or `stop()`.

    Raises:
        ConfigError: a configuration key is unknown or its value is not allowed.
        ArgumentError: an argument can't be used.
    """
    settings, wanted = configuration.of(conf), Filter(tags, where)
    poll_s, lease_s = seconds("poll", poll), seconds("lease", lease)
    options = object_store.storage_options(storage_options)
    begin_ms, name = start_ms(start), checked_group(group)
    check_readable(settings)
    plan = ReadOptions(settings, name, wanted, begin_ms, follow, lease_s, options)
    return Consumer(topics_of(topic), plan, poll_s)


class Consumer:
    """One instance of a group, and the iterator over its messages. A new loop continues where the last one was left.

    The instance joins the group when the first message is asked for. It leaves with `close()` or at the end of the
    `with` block. Without a `with` block it also leaves at the end of its messages, and when nothing refers to the
    consumer or its messages any more. SIGTERM and SIGINT stop it during a loop, a `run`, and a call of `next`. See
    `consume`.

    Attributes:
        told: the flag that stops it.
    """

    def __init__(self, topics: tuple[str, ...], plan: ReadOptions, poll_s: float) -> None:
        self.topics, self.group = topics, plan.group
        self._plan, self._poll_s = plan, poll_s
        self.told = Stop()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.RLock()  # for threads that share the iterator
        self._messages: Iterator[ReceivedMessage] | None = None
        self._is_entered = self._is_closed = False
        self._pid = 0

    def stop(self) -> None:
        """End the iteration; may be called in any thread."""
        self.told.set()

    def close(self) -> None:
        """Write the receipts and leave the group; the end of the iteration does this too.

        Raises:
            ConsumerError: receipts could not be written; their messages are redelivered.
        """
        self.told.set()
        self._is_closed = True
        if self._is_forked():
            return
        with self._lock:
            try:
                if self._messages is not None:
                    self._messages.close()  # type: ignore[attr-defined]
            finally:
                self._leave(at_once=True)

    def __enter__(self) -> Self:
        self._check_open()
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ConsumerError as failure:
            if error is None:
                raise
            log.error("%s", failure)  # the block's own error must reach the caller

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Loop over the next messages.

        Raises:
            ConsumerError: the consumer was closed.
        """
        self._check_open()
        return self._loop()

    def __next__(self) -> ReceivedMessage:
        """Wait for the next message and return it.

        Raises:
            ConsumerError: the group's tables can't be written, or the consumer was closed, or began before a fork.
            WarehouseError: the topic can't be read.
            StopIteration: the consumer was stopped; or without `follow`, no message is left.
        """
        self._check_open()
        with stopped_by_signals(self.told):
            return self._take()

    def _loop(self) -> Iterator[ReceivedMessage]:
        """Handles the signals until the generator ends: a loop that is left restores the former handlers."""
        with stopped_by_signals(self.told), suppress(StopIteration):
            while not self._is_closed:
                yield self._take()

    def _take(self) -> ReceivedMessage:
        self._check_process()
        with self._lock:
            if self._messages is None:
                self._messages = _until_nobody_holds_it(self._begin(Subscription.messages), self._subscriptions)
            try:
                return next(self._messages)
            except StopIteration:
                self._messages = None
                self._end()
                raise
            except BaseException as error:  # a message that was read may be lost to the caller, so hand over no more
                self.told.set()
                self._messages = None
                self._end_quietly()
                if isinstance(error, NoTableError):  # a frequent one, right after the topic's first message was sent
                    raise error.with_traceback(None) from None  # its text says it all, and five frames hide that
                raise

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "this consumer was closed and hands over no more messages; make another one with commitlake.consume"
            raise ConsumerError(msg)

    def _is_forked(self) -> bool:
        """Whether it began in another process: a fork has neither its threads nor deltalake's."""
        return self._pid not in (0, os.getpid())

    def _check_process(self) -> None:
        if self._is_forked():
            raise ConsumerError(FORKED)

    def join(self) -> None:
        """Join the group now, and not when the first message is asked for. Raises the same errors.

        A topic without a table is joined later.
        """
        self._subscribe()
        for each in self._subscriptions:
            each.join()

    def batches(self) -> Iterator[MessageBatch]:
        """Hand messages over as Arrow tables instead of one by one, some three times as many a second.

        A table has the messages of one window, up to some MiB. Messages that are due for a retry come in own tables.

        Raises:
            ConsumerError: the group's tables can't be written, or a loop over single messages was left unfinished.
            WarehouseError: the topic can't be read.
        """
        self._check_open()
        if self._messages is not None:
            msg = "batches: this consumer hands messages over one by one already; make another one for batches"
            raise ConsumerError(msg)
        try:
            with stopped_by_signals(self.told):
                for batch in self._begin(Subscription.batches):
                    yield batch
                    self._check_process()
        finally:
            self._end()

    @renamed(most="max_attempts")
    def run(
        self,
        handler: Handler,
        *,
        threads: int = 1,
        max_attempts: int = 16,
        ordered: bool = False,
        pauses: Sequence[Duration] = PAUSES,
    ) -> None:
        """Call a handler for each message, until SIGTERM, SIGINT or `stop()`; without `follow`, until the last message.

        A message is done when the handler returns, unless the handler called `done` or `retry` itself. When the handler
        raises an exception, it gets the message again after a pause, which grows. After `max_attempts` the message is
        a dead letter. The end of the run waits for running calls. A second signal ends it without them; their messages
        are redelivered.

        Args:
            handler: called with a message. Its coroutine is awaited on an event loop of the run, and its
                `concurrent.futures.Future` is waited for.
            threads: how many calls run at a time.
            max_attempts: attempts altogether.
            ordered: messages of one sharding key are handled one by one, in order, also across instances. Messages
                without a sharding key but with the same text in `keys` are, within an instance. Messages behind a
                failed one wait until it is done or a dead letter. Attempts are then counted in memory, so they restart
                in another instance.
            pauses: before the second attempt, the third and so on; the last pause holds for all further attempts.

        Raises:
            ConsumerError: the group's tables can't be written; an `ArgumentError` when an argument can't be used.
            WarehouseError: the topic can't be read.
        """
        self.run_on(None, handler, threads, max_attempts, pauses, ordered)

    def run_on(
        self,
        loop: asyncio.AbstractEventLoop | None,
        handler: Handler,
        threads: int,
        max_attempts: int,
        pauses: Sequence[Duration],
        ordered: bool,
    ) -> None:
        """`run` with coroutines awaited on `loop`; None for an event loop of its own."""
        with awaiting(handler, loop) as call:
            runner = Runner(traced(call, self.group), threads, max_attempts, pauses, ordered, self.told)
            with self, stopped_by_signals(self.told):  # until the last handler has returned
                runner.run(self)

    def raise_if_failed(self) -> None:
        """Called by code that waits between two messages.

        Raises:
            ConsumerError: the group's tables can't be written any more.
        """
        for subscription in self._subscriptions:
            subscription.raise_if_failed()

    def _subscribe(self) -> None:
        self._check_process()
        if not self._subscriptions:
            refuse_fork()
            self._pid = os.getpid()
            self._subscriptions = tuple(Subscription(topic, self._plan, self.told) for topic in self.topics)

    def _begin(self, kind: Callable[[Subscription], Iterator[T]]) -> Iterator[T]:
        self._subscribe()
        for each in self._subscriptions:
            each.begin()
        return _handed_over(self._subscriptions, kind, self.told, self._poll_s, follow=self._plan.follow)

    def _end(self) -> None:
        """Leave after the iteration; but inside a `with` block messages may be finished until the end of the block."""
        if not self._is_entered:
            self._leave(at_once=False)

    def _end_quietly(self) -> None:
        try:
            self._end()
        except ConsumerError as failure:
            log.error("%s", failure)  # the error that ended the iteration must reach the caller

    def _leave(self, *, at_once: bool) -> None:
        left, self._subscriptions = self._subscriptions, ()
        failures = []
        for subscription in left:
            try:
                subscription.leave(at_once=at_once)
            except ConsumerError as error:
                failures.append(error)
        if failures:
            raise failures[0]


def _handed_over(
    subscriptions: tuple[Subscription, ...],
    kind: Callable[[Subscription], Iterator[T]],
    stop: Stop,
    poll_s: float,
    *,
    follow: bool,
) -> Iterator[T]:
    """The messages of the topics, in turn, until `stop` is set or, without `follow`, all topics are at their end."""
    while not stop.is_set():
        is_idle = True
        for found in (found for each in subscriptions if each.join() for found in kind(each)):
            is_idle = False
            yield found
        if is_idle and not follow and all(each.is_at_end() for each in subscriptions):
            return
        if is_idle and not any(each.has_read for each in subscriptions):
            _wait(subscriptions, stop, poll_s)


def _until_nobody_holds_it(messages: Iterator[T], subscriptions: tuple[Subscription, ...]) -> Iterator[T]:
    """The messages; when the consumer, which alone holds this generator, is collected, leave once none is open."""
    try:
        yield from messages
    except GeneratorExit:
        for each in subscriptions:
            each.drain()
        raise


def _wait(subscriptions: tuple[Subscription, ...], stop: Stop, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while (left_s := until - time.monotonic()) > 0 and not stop.is_set():
        if any([each.is_due() for each in subscriptions]):
            return
        stop.wait(min(left_s, *(each.due_in_s() for each in subscriptions)))
