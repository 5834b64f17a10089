"""Committed messages, one after the other, without Spark: `commitlake.consume`."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from commitlake import config as configuration
from commitlake.clients import tracing
from commitlake.clients.consumer.arguments import Start, checked_group, seconds, start_ms, topics_of
from commitlake.clients.consumer.batches import MessageBatch
from commitlake.clients.consumer.filters import Filter
from commitlake.clients.consumer.handlers import Handler, awaiting
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.outcomes import FORKED
from commitlake.clients.consumer.runner import PAUSES, Runner
from commitlake.clients.consumer.subscription import ReadOptions, Subscription
from commitlake.clients.consumer.tags import Tags
from commitlake.errors import ConsumerError
from commitlake.protocol.durations import Duration
from commitlake.reading.forks import refuse_fork
from commitlake.reading.table import Options, location
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

    At least once: a message comes again when its instance ends before `done` was called and written, which takes up to
    a second, or a few where a process has hundreds of groups. Instances of a group share the topic by queue.

    Args:
        conf: the coordinator's configuration, the path of one, or its keys and values; of them
            `warehouse`, `receipts` and `receipts.retention` count.
        topic: the topic, or a list of topics; `message.topic` tells them apart.
        group: the group; each group gets all messages.
        tags: a tag, tags joined by `||`, or a list of tags; None or `*` for all.
        where: an SQL condition on properties, for example `region = 'eu' AND amount > 10`.
        start: where a group begins that has never read the topic: `first`, `newest`, or a time (ms since epoch, UTC, or
            an aware datetime).
        follow: wait for new messages; else end behind the last one that is there.
        poll: how often to look for new messages.
        lease: an instance that gives no sign for so long loses its queues.
        storage_options: of deltalake, for object stores.

    Returns:
        What iterates over the messages, until SIGTERM, SIGINT or `stop()`.

    Raises:
        ConfigError: a configuration key is unknown or its value is not allowed.
        ConsumerError: an argument can't be used.
    """
    settings, wanted = configuration.of(conf), Filter(tags, where)
    poll_s, lease_s = seconds("poll", poll), seconds("lease", lease)
    begin_ms, name = start_ms(start), checked_group(group)
    plans = {
        each: ReadOptions(
            location(settings.warehouse, f"topics/{each}"),
            *(settings.receipts_place, name, wanted, begin_ms, follow, lease_s),
            *(settings.receipts_retention_ms, storage_options),
        )
        for each in topics_of(topic)
    }
    return Consumer(plans, poll_s)


class Consumer:
    """One instance of a group, and the iterator over its messages: a loop goes on where the one before it was left.

    The instance begins with the first message that is asked for. It ends with `close()` or the `with` block; without
    one, when its messages are at their end, or when nobody holds it or a message of it any more. SIGTERM and SIGINT are
    heard during a loop, a `run`, and a call of `next`. See `consume`.

    Attributes:
        told: tells it to stop.
    """

    def __init__(self, plans: Mapping[str, ReadOptions], poll_s: float) -> None:
        self.topics = tuple(plans)
        self.group = next(iter(plans.values())).group
        self._plans, self._poll_s = plans, poll_s
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
        """Write what is finished and leave the group; the end of the iteration does it too.

        Raises:
            ConsumerError: what is finished could not be written; it comes again.
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
            log.error("%s", failure)  # the caller has to know the block's own error

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """A loop over what comes next.

        Raises:
            ConsumerError: the consumer was closed.
        """
        self._check_open()
        return self._loop()

    def __next__(self) -> ReceivedMessage:
        """The next message, once there is one.

        Raises:
            ConsumerError: the group's tables can't be written, or the consumer was closed or comes from a fork.
            WarehouseError: the topic can't be read.
            StopIteration: told to stop; or without `follow`, there is no message any more.
        """
        self._check_open()
        with stopped_by_signals(self.told):
            return self._take()

    def _loop(self) -> Iterator[ReceivedMessage]:
        """It holds the signals as long as somebody holds it: a loop that is left gives them back."""
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
            except BaseException:  # what was read may not have been handed over, so nothing more is
                self.told.set()
                self._messages = None
                self._end_quietly()
                raise

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "this consumer was closed and hands over no more messages; make another one with commitlake.consume"
            raise ConsumerError(msg)

    def _is_forked(self) -> bool:
        """Whether it has begun in another process: a fork takes along neither its threads nor deltalake's."""
        return self._pid not in (0, os.getpid())

    def _check_process(self) -> None:
        if self._is_forked():
            raise ConsumerError(FORKED)

    def batches(self) -> Iterator[MessageBatch]:
        """Hand messages over as Arrow tables, in place of one by one: some three times as many a second.

        A table has the messages of one window, up to some MiB; messages that are due again come as tables of their own.

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

    def run(
        self,
        handler: Handler,
        *,
        threads: int = 1,
        most: int = 16,
        ordered: bool = False,
        pauses: Sequence[Duration] = PAUSES,
    ) -> None:
        """Call a handler for each message, until SIGTERM, SIGINT or `stop()`; without `follow`, until the last message.

        A handler that returns has done its message, unless it called `done` or `retry` itself. One that raises an
        exception gets the message again after a pause, which grows, and after `most` attempts it is a dead letter.
        At the end it waits for the calls under way. A second signal ends it without them; their messages come again.

        Args:
            handler: called with a message; what a coroutine function does is awaited, on an event loop of the run, and
                so is a `concurrent.futures.Future`.
            threads: how many calls there are at a time.
            most: attempts altogether.
            ordered: messages of one sharding key, else of one text in `keys`, are handled one after the other in their
                order, across instances only those of one sharding key; those behind one that failed wait until it is
                done or a dead letter. Its attempts are counted in memory, so they begin anew in another instance.
            pauses: before the second attempt, the third and so on; the last one holds for all further ones.

        Raises:
            ConsumerError: an argument can't be used, or the group's tables can't be written.
            WarehouseError: the topic can't be read.
        """
        self.run_on(None, handler, threads, most, pauses, ordered)

    def run_on(
        self,
        loop: asyncio.AbstractEventLoop | None,
        handler: Handler,
        threads: int,
        most: int,
        pauses: Sequence[Duration],
        ordered: bool,
    ) -> None:
        """The same; coroutines are awaited on `loop`, None for one of its own."""
        with awaiting(handler, loop) as call:
            runner = Runner(tracing.handling(call, self.group), threads, most, pauses, ordered, self.told)
            with self, stopped_by_signals(self.told):  # until the last handler has returned
                runner.run(self)

    def raise_if_failed(self) -> None:
        """For whoever waits between two messages.

        Raises:
            ConsumerError: the group's tables can't be written any more.
        """
        for subscription in self._subscriptions:
            subscription.raise_if_failed()

    def _begin(self, kind: Callable[[Subscription], Iterator[T]]) -> Iterator[T]:
        self._check_process()
        if not self._subscriptions:
            refuse_fork()
            self._pid = os.getpid()
            self._subscriptions = tuple(Subscription(topic, plan, self.told) for topic, plan in self._plans.items())
        follow = next(iter(self._plans.values())).follow
        return _handed_over(self._subscriptions, kind, self.told, self._poll_s, follow=follow)

    def _end(self) -> None:
        """The iteration is over. Inside a `with` block messages may be finished until the end of the block."""
        if not self._is_entered:
            self._leave(at_once=False)

    def _end_quietly(self) -> None:
        try:
            self._end()
        except ConsumerError as failure:
            log.error("%s", failure)  # the caller has to know the error that ended the iteration

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
    """What the topics have, in turn, until told to stop or, without `follow`, until none has anything."""
    while not stop.is_set():
        is_idle = True
        for found in _rounds(subscriptions, kind):
            is_idle = False
            yield found
        if is_idle and not follow and all(each.is_at_end() for each in subscriptions):
            return
        if is_idle and not any(each.has_read for each in subscriptions):
            _wait(subscriptions, stop, poll_s)


def _until_nobody_holds_it(messages: Iterator[T], subscriptions: tuple[Subscription, ...]) -> Iterator[T]:
    """A consumer holds its messages, and they do not know it: where nobody holds it any more, it leaves its group."""
    try:
        yield from messages
    except GeneratorExit:
        for each in subscriptions:
            each.drain()
        raise


def _rounds(subscriptions: tuple[Subscription, ...], kind: Callable[[Subscription], Iterator[T]]) -> Iterator[T]:
    """What each topic has now."""
    for each in subscriptions:
        if each.join():
            yield from kind(each)


def _wait(subscriptions: tuple[Subscription, ...], stop: Stop, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while (left_s := until - time.monotonic()) > 0 and not stop.is_set():
        if any([each.is_due() for each in subscriptions]):
            return
        stop.wait(min(left_s, *(each.due_in_s() for each in subscriptions)))
