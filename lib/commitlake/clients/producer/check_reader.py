"""Reads check requests from Kafka, has them answered in a bounded pool, and commits each after its answer."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakMethod

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError as ClientError

from commitlake.clients.daemon_pool import DaemonPool
from commitlake.clients.producer.check_turns import Turned, turns
from commitlake.clients.producer.link import Done, KafkaLink
from commitlake.errors import RecordError, RefusedSendError
from commitlake.kafka.admin_client import explain
from commitlake.kafka.clients import python_group_options
from commitlake.kafka.refusals import is_refusal
from commitlake.kafka.throttled import IgnoredRecords
from commitlake.kafka.unreadable import poll
from commitlake.protocol import headers, wire
from commitlake.protocol.kafka_topics import CHECK, check_topic

log = logging.getLogger(__name__)

THREADS = 5
WAITING = 2_000
"""Checks that may be read and not yet answered; above this number reading pauses, so that an instance that joins can
take the others."""
POLL_RECORDS = 100
RETRY_S = 1.0
LEAVE_MS = 10_000
"""Limit of a commit, and of leaving the group: kafka-python retries a commit for ever, and `stop` would wait for it."""
_BEGINS_S = 5.0
"""A free thread begins a call within this time, also on a busy machine."""
_GRACE_S = 2.0
"""How much longer than its time limit `stop` waits for a running turn."""
REFUSED_S = 30.0
"""Pause after a refusal; then it is retried, so that a right granted later needs no restart."""


class CheckProgress:
    """The offset below which all records of a partition are done. Calls of `begin` must come in rising order."""

    def __init__(self) -> None:
        self._open: dict[int, None] = {}  # a dict keeps the order in which records began
        self._next = 0
        self._lock = threading.Lock()

    def begin(self, offset: int) -> None:
        """Note that the record at `offset` has been read."""
        with self._lock:
            self._open[offset] = None
            self._next = offset + 1

    def done(self, offset: int) -> None:
        """Note that the record at `offset` needs no more work; a second call changes nothing."""
        with self._lock:
            self._open.pop(offset, None)

    def __len__(self) -> int:
        """How many records were read and are not done."""
        return len(self._open)

    @property
    def position(self) -> int:
        """Offset of the first record that is not done; else the offset after the last record that was read."""
        with self._lock:
            return next(iter(self._open), self._next)


class Calls:
    """Calls of the listener, each of which may take `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._begun: dict[int, float] = {}
        self._numbers = itertools.count()
        self._returned = time.monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a call as running within the `with` block."""
        number = next(self._numbers)
        self._begun[number] = time.monotonic()
        try:
            yield
        finally:
            self._returned = time.monotonic()
            del self._begun[number]

    def __len__(self) -> int:
        """How many calls are running."""
        return len(self._begun)

    def are_late(self) -> bool:
        """Whether calls are running, and none has begun or returned for `timeout_s`."""
        begun = list(self._begun.values())
        return bool(begun) and time.monotonic() - max(self._returned, *begun) > self.timeout_s


Answer = Callable[[wire.CheckRecord, Calls, Done], object]
"""Answers one check: asks the listener within `Calls.one`, sends the answer, and calls `Done` with the outcome."""


class CheckAnswerer(ConsumerRebalanceListener):  # type: ignore[misc]
    """One Kafka consumer, in the Kafka consumer group that all instances of a producer group share.

    It takes turns with the other readers of this process, and ends when the object of `answer`, a method, is collected.
    Answers run in `executor`, or in a pool of its own; after `timeout_s` a running one counts as hung.
    """

    def __init__(
        self, link: KafkaLink, group: str, answer: Answer, executor: Executor | None, timeout_s: float
    ) -> None:
        self._link = link
        self._group = group
        self._answer = WeakMethod(answer)
        self._own_pool = None if executor else DaemonPool(THREADS, "commitlake-check")
        self._executor: Executor = executor or self._own_pool  # type: ignore[assignment]
        self._topic = self._reads = link.kafka.topic(CHECK)
        self._progress: dict[TopicPartition, CheckProgress] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._running: set[Future[object]] = set()
        self._calls = Calls(timeout_s)
        self.ignored = IgnoredRecords(self._topic)
        self._failed: deque[tuple[CheckProgress, int, wire.CheckRecord]] = deque()
        self._stopping = threading.Event()
        self._until = 0.0
        self._consumer: KafkaConsumer | None = None
        self._rests_until, self._went = 0.0, Turned.WELL
        self._full_since: float | None = None
        self._turn = threading.Lock()
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin to read checks, the oldest uncommitted one first."""
        turns().add(self._take_turn)

    def stop(self, until: float) -> None:
        """Read no more checks, wait for running answers, commit, and leave the consumer group.

        Unanswered checks are given up at `until`, by `time.monotonic`.
        """
        self._until = until
        self._stopping.set()
        if os.getpid() != self._pid:  # the reader belongs to the parent process, whose threads are not here
            return
        if self._turn.acquire(timeout=max(0.0, until - time.monotonic()) + _GRACE_S):
            try:
                self._leave()
            finally:
                self._turn.release()
        if self._own_pool:
            self._own_pool.shutdown(wait=False, cancel_futures=True)

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Begin new partitions; Kafka's client calls this when the instance gets some."""
        self._progress.update({partition: CheckProgress() for partition in assigned if partition not in self._progress})

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Commit, and forget lost partitions, as Kafka's client asks. Running answers to their checks are harmless."""
        if self._consumer and (news := self._news()):
            self._consumer.commit_async(news)  # this runs in the thread of the connections, which must not wait
        for partition in revoked:
            self._progress.pop(partition, None)
            self._committed.pop(partition, None)

    def _take_turn(self, wait_ms: int) -> Turned:
        if not self._turn.acquire(timeout=wait_ms / 1_000):  # `stop` holds it
            return Turned.WELL
        try:
            if self._answer() is None and not self._stopping.is_set():
                self._until = time.monotonic() + LEAVE_MS / 1_000
                self._stopping.set()
            if self._stopping.is_set():
                self._leave()
                if self._answer() is None:
                    del self._link  # a closed client refers to `self` until the next garbage collection
                return Turned.ENDS
            self._read(wait_ms)
        except Exception as error:  # whatever it is, retry: this group's checks must not need a restart
            refused = is_refusal(error)
            reason = explain(self._link.kafka, error) if refused else error
            if refused or turns().outages.is_due():
                log.warning("can't read checks from %s; retrying: %s", self._topic, reason)
            self._disconnect()
            self._rests_until, self._went = time.monotonic() + (REFUSED_S if refused else RETRY_S), Turned.FAILED
        finally:
            self._turn.release()
        return self._went

    def _read(self, wait_ms: int) -> None:
        is_late = self._calls.are_late()
        if self._consumer is None:
            if is_late or time.monotonic() < self._rests_until:
                self._stopping.wait(wait_ms / 1_000)
            else:
                self._connect()
        elif self._is_full(is_late):
            self._step_aside()
        elif self._reads != self._topic_now():
            self._disconnect()
        else:
            self._hold_back(self._consumer)
            self._poll(self._consumer, wait_ms)
            self._try_again()
            self._went = self._commit()

    def _is_full(self, is_late: bool) -> bool:
        """Whether calls are late, and for some seconds further checks have waited for a thread: all of them hang."""
        if not (is_late and len(self._running) > len(self._calls)):
            self._full_since = None
            return False
        self._full_since = self._full_since or time.monotonic()
        return time.monotonic() - self._full_since > _BEGINS_S

    def _connect(self) -> None:
        self._full_since = None
        self._progress.clear()
        self._committed.clear()
        self._reads = self._topic_now()
        connection = self._link.connection
        options = connection.client_options(KafkaConsumer)
        self._consumer = KafkaConsumer(
            **{**options, "kafka_client": partial(options["kafka_client"], connection.net())},
            **python_group_options(self._link.kafka),
            group_id=f"{self._topic}.{self._group}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer.subscribe([self._reads], listener=self)
        self._consumer.partitions_for_topic(self._reads)  # else kafka-python joins the group twice

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer:
            try:
                consumer.close(autocommit=False, timeout_ms=self._leave_ms())
            except Exception as error:
                log.info("leaving the group of %s failed: %s", self._topic, error)

    def _leave(self) -> None:
        if self._consumer and self._answer():
            try:
                self._drain()
            except Exception as error:
                log.warning("the coordinator may repeat the last checks of %s: %s", self._group, error)
        self._disconnect()

    def _poll(self, consumer: KafkaConsumer, wait_ms: int) -> None:
        found = poll(consumer, self._pass, timeout_ms=wait_ms, max_records=POLL_RECORDS)
        for partition, records in found.items():
            self._take(self._progress.setdefault(partition, CheckProgress()), records)

    def _pass(self, partition: TopicPartition, offset: int, reason: str) -> None:
        progress = self._progress.setdefault(partition, CheckProgress())
        progress.begin(offset)
        progress.done(offset)
        self.ignored.add(f"{partition.partition}-{offset}", reason)

    def _topic_now(self) -> str:
        """The Kafka topic of this group's checks; the coordinator may change it at each start."""
        own = self._group in self._link.settings.check_topics
        return self._link.kafka.topic(check_topic(self._group)) if own else self._topic

    def _leave_ms(self) -> int:
        """Time limit of a commit, and of leaving the group, ms."""
        left = (self._until - time.monotonic()) * 1_000 if self._stopping.is_set() else LEAVE_MS
        return round(min(LEAVE_MS, max(500, left / 2)))

    def _step_aside(self) -> None:
        """Leave the group until a hung call returns, so that other instances get its checks."""
        log.error(
            "no listener call has returned for %.0f s, so this instance leaves the group %s: others answer its checks; "
            "it comes back when a call returns",
            *(self._calls.timeout_s, self._group),
        )
        self._disconnect()
        for future in list(self._running):
            future.cancel()  # takes effect on calls that have not begun

    def _hold_back(self, consumer: KafkaConsumer) -> None:
        """Pause all partitions while too many checks wait; without polling Kafka would take this instance for dead."""
        if sum(len(progress) for progress in list(self._progress.values())) + POLL_RECORDS > WAITING:
            consumer.pause(*consumer.assignment())
        elif consumer.paused():
            consumer.resume(*consumer.paused())

    def _take(self, progress: CheckProgress, records: Sequence[Any]) -> None:
        for record in records:
            progress.begin(record.offset)
            check = self._decoded(record)
            if check is None:
                progress.done(record.offset)
            else:
                self._submit(progress, record.offset, check)

    def _decoded(self, record: Any) -> wire.CheckRecord | None:
        """The check; None for a check of another group, and for a malformed record."""
        if (headers.PGROUP, self._group.encode()) not in record.headers:
            return None
        try:
            return wire.decode_check(record.value, record.headers)
        except RecordError as error:
            self.ignored.add(f"{record.partition}-{record.offset}", error)
            return None

    def _submit(self, progress: CheckProgress, offset: int, check: wire.CheckRecord) -> None:
        def done(error: BaseException | None) -> None:
            if isinstance(error, RefusedSendError):  # a retry would be refused too, for example a missing partition
                give_up(error)
            elif error:
                if turns().outages.is_due():
                    log.warning("Kafka did not acknowledge the answer to check %s; retrying: %s", check.check_id, error)
                self._failed.append((progress, offset, check))
            else:
                progress.done(offset)

        def returned(call: Future[object]) -> None:
            self._running.discard(call)
            if not call.cancelled() and (error := call.exception()):
                give_up(error)

        def give_up(error: BaseException) -> None:
            self.ignored.add(f"at offset {offset}, check {check.check_id},", error)
            progress.done(offset)

        answer = self._answer()
        if answer is None:
            return
        future = self._executor.submit(answer, check, self._calls, done)
        del answer  # it refers to the object, which nobody else may hold any more
        self._running.add(future)
        future.add_done_callback(returned)

    def _try_again(self) -> None:
        for _ in range(len(self._failed)):
            self._submit(*self._failed.popleft())

    def _commit(self) -> Turned:
        """Commit, for each partition, the offset up to which every check is answered."""
        news = self._news()
        if not news or self._consumer is None:
            return Turned.WELL
        try:
            self._consumer.commit(news, self._leave_ms())
            self._committed.update({partition: at.offset for partition, at in news.items()})
        except ClientError as error:
            log.info("offsets of %s were not committed, so some checks may come again: %s", self._topic, error)
            return Turned.FAILED
        return Turned.WELL

    def _news(self) -> dict[TopicPartition, OffsetAndMetadata]:
        positions = {partition: progress.position for partition, progress in list(self._progress.items())}
        return {p: OffsetAndMetadata(at) for p, at in positions.items() if at > self._committed.get(p, 0)}

    def _drain(self) -> None:
        """Cancel answers that have not begun, wait for running ones, and commit the checks whose answer Kafka has."""
        for future in list(self._running):
            future.cancel()
        wait(list(self._running), timeout=max(0.0, self._until - time.monotonic()))
        self._link.flush(max(0.0, self._until - time.monotonic()))
        self._commit()
