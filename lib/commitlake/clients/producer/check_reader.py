"""Check requests: read from Kafka, answered in a bounded pool, committed after the answer."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError as ClientError

from commitlake.clients.producer.check_progress import Calls, CheckProgress
from commitlake.clients.producer.daemon_pool import DaemonPool
from commitlake.clients.producer.ignored import Ignored
from commitlake.clients.producer.link import Done, KafkaLink
from commitlake.errors import RecordError, RefusedSend
from commitlake.kafka.clients import python_group_options
from commitlake.kafka.refusals import is_refusal
from commitlake.kafka.unreadable import poll
from commitlake.protocol import headers, wire
from commitlake.protocol.kafka_topics import CHECK, check_topic

log = logging.getLogger(__name__)

THREADS = 5
WAITING = 2_000
"""Checks that may be read and not yet answered; above it reading pauses, so that other instances can take some."""
POLL_RECORDS = 100
POLL_MS = 200
RETRY_S = 1.0
LEAVE_MS = 10_000
"""For a commit, and for leaving the group: kafka-python tries a commit again for ever, and `stop` would wait for it."""
_GRACE_S = 2.0
"""For the reader's thread to notice that its time is over."""
REFUSED_S = 30.0
"""Wait after a refusal: a right that is granted later must not need a restart."""

Answer = Callable[[wire.CheckRecord, Calls, Done], object]
"""Answers one check: asks the listener inside `Calls.one`, sends, and calls back with the outcome of that."""


class CheckAnswerer(ConsumerRebalanceListener):  # type: ignore[misc]
    """One Kafka consumer, in a thread of its own, of the consumer group that all instances of a producer group share.

    Args:
        link: where Kafka is.
        group: producer group whose checks are answered.
        answer: answers one check.
        executor: runs `answer`; None for a pool of its own.
        timeout_s: after which a call that has not returned counts as hung.
    """

    def __init__(
        self, link: KafkaLink, group: str, answer: Answer, executor: Executor | None, timeout_s: float
    ) -> None:
        self._link = link
        self._group = group
        self._answer = answer
        self._own_pool = None if executor else DaemonPool(THREADS, "commitlake-check")
        self._executor: Executor = executor or self._own_pool  # type: ignore[assignment]
        self._topic = link.kafka.topic(CHECK)
        self._progress: dict[TopicPartition, CheckProgress] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._running: set[Future[object]] = set()
        self._calls = Calls(timeout_s)
        self.ignored = Ignored(self._topic)
        self._failed: deque[tuple[CheckProgress, int, wire.CheckRecord]] = deque()
        self._stopping = threading.Event()
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name="commitlake-checks", daemon=True)

    def start(self) -> None:
        """Begin to read checks, the oldest uncommitted one first."""
        self._thread.start()

    def stop(self, until: float) -> None:
        """Read no more checks, wait for the answers under way, commit, and leave the consumer group.

        Args:
            until: by `time.monotonic`; what has not been answered then is given up.
        """
        self._until = until
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()) + _GRACE_S)
        if self._own_pool:
            self._own_pool.shutdown(wait=False, cancel_futures=True)

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Called by Kafka's client when this instance gets partitions."""
        self._progress.update({partition: CheckProgress() for partition in assigned if partition not in self._progress})

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Called by Kafka's client when it loses partitions; answers to their checks under way are harmless."""
        self._commit()
        for partition in revoked:
            self._progress.pop(partition, None)
            self._committed.pop(partition, None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._consume()
                self._await_a_free_thread()
            except Exception as error:  # whatever it is, this group's checks must not wait for a restart
                refused = is_refusal(error)
                reason = self._link.explain(error) if refused else error
                log.warning("reading checks from %s failed, trying again: %s", self._topic, reason)
                self._stopping.wait(REFUSED_S if refused else RETRY_S)

    def _consume(self) -> None:
        self._progress.clear()
        self._committed.clear()
        consumer = self._consumer = KafkaConsumer(
            **self._link.client_options(KafkaConsumer),
            **python_group_options(self._link.kafka),
            group_id=f"{self._topic}.{self._group}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            topic = self._topic_now()
            consumer.subscribe([topic], listener=self)
            consumer.partitions_for_topic(topic)  # else kafka-python joins the group twice
            while not self._stopping.is_set() and topic == self._topic_now():
                if self._calls.are_late() and len(self._running) > len(self._calls):  # and others wait for a thread
                    return
                self._hold_back(consumer)
                self._poll(consumer)
                self._try_again()
                self._commit()
            if self._stopping.is_set():
                self._drain()
        finally:
            consumer.close(autocommit=False, timeout_ms=self._leave_ms())

    def _poll(self, consumer: KafkaConsumer) -> None:
        found = poll(consumer, self._pass, timeout_ms=POLL_MS, max_records=POLL_RECORDS)
        for partition, records in found.items():
            self._take(self._progress.setdefault(partition, CheckProgress()), records)

    def _pass(self, partition: TopicPartition, offset: int, reason: str) -> None:
        progress = self._progress.setdefault(partition, CheckProgress())
        progress.begin(offset)
        progress.done(offset)
        self.ignored.add(f"{partition.partition}-{offset}", reason)

    def _topic_now(self) -> str:
        """Where the checks of this group are; the coordinator may say something else at each of its starts."""
        own = self._group in self._link.settings.check_topics
        return self._link.kafka.topic(check_topic(self._group)) if own else self._topic

    def _leave_ms(self) -> int:
        """For a commit, and for leaving the group."""
        left = (self._until - time.monotonic()) * 1_000 if self._stopping.is_set() else LEAVE_MS
        return round(min(LEAVE_MS, max(500, left / 2)))

    def _await_a_free_thread(self) -> None:
        """Out of the group, so that other instances get its checks, until a hung call has returned."""
        if self._stopping.is_set() or not self._calls.are_late():
            return
        log.error(
            "no listener call has returned for %.0f s, so this instance leaves the group %s: others answer its checks; "
            "it comes back when a call returns",
            *(self._calls.timeout_s, self._group),
        )
        for future in list(self._running):
            future.cancel()  # those that have not begun
        while self._calls.are_late() and not self._stopping.wait(RETRY_S):
            pass

    def _hold_back(self, consumer: KafkaConsumer) -> None:
        """Pause all partitions while the pool is full; polling goes on, or Kafka would consider this instance dead."""
        if sum(len(progress) for progress in self._progress.values()) + POLL_RECORDS > WAITING:
            consumer.pause(*consumer.assignment())
        elif consumer.paused():
            consumer.resume(*consumer.paused())

    def _take(self, progress: CheckProgress, records: Sequence[Any]) -> None:
        for record in records:
            progress.begin(record.offset)
            check = self._read(record)
            if check is None:
                progress.done(record.offset)
            else:
                self._submit(progress, record.offset, check)

    def _read(self, record: Any) -> wire.CheckRecord | None:
        """The check, or None for that of another group and for a malformed record."""
        if (headers.PGROUP, self._group.encode()) not in record.headers:
            return None
        try:
            return wire.decode_check(record.value, record.headers)
        except RecordError as error:
            self.ignored.add(f"{record.partition}-{record.offset}", error)
            return None

    def _submit(self, progress: CheckProgress, offset: int, check: wire.CheckRecord) -> None:
        def done(error: BaseException | None) -> None:
            if isinstance(error, RefusedSend):  # as it would be again, for example in a queue that does not exist
                give_up(error)
            elif error:
                log.warning("the answer to check %s was not acknowledged, trying again: %s", check.check_id, error)
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

        future = self._executor.submit(self._answer, check, self._calls, done)
        self._running.add(future)
        future.add_done_callback(returned)

    def _try_again(self) -> None:
        for _ in range(len(self._failed)):
            self._submit(*self._failed.popleft())

    def _commit(self) -> None:
        """Commit, for each partition, the offset up to which every check is answered."""
        positions = {partition: progress.position for partition, progress in self._progress.items()}
        news = {p: at for p, at in positions.items() if at > self._committed.get(p, 0)}
        if not news:
            return
        try:
            self._consumer.commit(
                {partition: OffsetAndMetadata(at) for partition, at in news.items()}, self._leave_ms()
            )
            self._committed.update(news)
        except ClientError as error:
            log.info("offsets of %s were not committed, so some checks may come again: %s", self._topic, error)

    def _drain(self) -> None:
        """Cancel what has not begun, wait for running answers, and commit what Kafka has acknowledged."""
        for future in list(self._running):
            future.cancel()
        wait(list(self._running), timeout=max(0.0, self._until - time.monotonic()))
        self._link.flush(max(0.0, self._until - time.monotonic()))
        self._commit()
