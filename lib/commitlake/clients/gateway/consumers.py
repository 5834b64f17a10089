"""The gateway's side towards topics: it is an instance of each group for which its clients consume."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from commitlake.clients.consumer.consume import Consumer, consume
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.gateway.access import Caller
from commitlake.clients.gateway.deliveries import Deliveries
from commitlake.clients.gateway.messages import topic_name
from commitlake.clients.gateway.reader import MOST_HELD, Reader
from commitlake.clients.gateway.receiving import (
    MOST_RECEIVED,
    Subscribed,
    check_filter,
    group_name,
    invisible_s,
    received,
    subscribed,
)
from commitlake.clients.gateway.stubs import Proto, definitions, ok, services, status_of
from commitlake.config import Config
from commitlake.errors import ConfigError, GatewayRefusal, WarehouseError
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.topic_names import is_allowed
from commitlake.protocol.wire import Settings

log = logging.getLogger(__name__)

IDLE_S = 15.0
"""An instance leaves its group after this time, if no client asks for its messages and no client has one."""
POLL = "500ms"
"""How often the tables are polled."""
LEASE = "15s"
"""An instance loses its queues after this time without a sign of life, for example when its gateway was killed."""
_MOST_READERS, _MOST_OF_CLIENT = 500, 50
"""Readers of the gateway, with two threads each, and readers of one client, so that none takes all places."""
_MOST_CALLS_OF_CLIENT = 200
"""Waiting calls of one client. `server` limits the calls of a connection, and of all clients."""
_REFUSED_S, _LEAST_REFUSED_S = 5.0, 0.5
"""A call too many is refused after the wait that it asks for, within these bounds, since it may ask for none."""
_LOOK_S = 1.0
_LEAVE_S = 12.0
_DEAD = "the client gave it up"


class Consumers:
    """Receives messages for clients, and notes the outcomes. Groups that a shell pattern of `fifo` matches are FIFO."""

    def __init__(self, settings: Config, fifo: Sequence[str], is_connected: Callable[[str], bool]) -> None:
        self._settings, self._fifo = settings, fifo
        self._least_s = settings.gateway.min_invisible_ms / 1_000
        self._deliveries = Deliveries(is_connected)
        self._readers: dict[Subscribed, Reader] = {}
        self._calls: Counter[str] = Counter()
        self._flood = ThrottledWarning(log)
        self._ending: set[asyncio.Future[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False

    async def receive(self, request: Proto, caller: Caller, limits: Settings, wait_s: float) -> list[Proto]:
        """Messages for a call, which waits for the first one; empty when none arrives within `wait_s`.

        Raises:
            GatewayRefusal: the group, the filter or a duration can't be used, the client has too many calls or
                subscriptions, or the gateway ends.
            RecordError: the topic can't be used.
            ConsumerError: the group's tables can't be written.
            WarehouseError: the topic can't be read.
        """
        until, what = time.monotonic() + wait_s, subscribed(request, limits)
        duration_s = None if request.auto_renew else invisible_s(request.invisible_duration, self._least_s)
        most = max(1, min(request.batch_size, MOST_RECEIVED))
        try:
            with self._waiting(caller.client):
                reader = await self._reader(what, caller)
                messages = await reader.take(caller.client, most, max(0.0, until - time.monotonic()))
        except GatewayRefusal as error:
            await self._slow_down(error, caller.client, wait_s)
            raise
        taken = []
        for message in messages:
            handle = self._deliveries.begin(message, reader, caller, duration_s)
            attempt = reader.attempt(message)
            try:
                taken.append(received(message, request.message_queue.topic, handle, attempt, duration_s))
            except Exception as error:  # one bad record must not hold up the others
                log.warning("%r can't be sent to a client: %s", message, error)
                self._deliveries.fail(handle, f"it can't be sent to a client: {type(error).__name__}")
        return taken

    def undo(self, taken: Sequence[Proto]) -> None:
        """Let other clients have messages that this client may not have received."""
        for each in taken:
            self._deliveries.not_got(each.system_properties.receipt_handle)

    def acknowledge(self, request: Proto, caller: Caller) -> Proto:
        """The answer to `AckMessage`, with a status for each entry.

        Raises:
            GatewayRefusal: `BAD_REQUEST`, too many entries.
        """
        if len(request.entries) > MOST_HELD:
            msg = f"the request has {len(request.entries)} entries; acknowledge at most {MOST_HELD} messages together"
            raise GatewayRefusal(msg, "BAD_REQUEST")
        topic, group = topic_name(request.topic), group_name(request.group)
        entries = [self._acknowledged(entry, topic, group, caller) for entry in request.entries]
        codes = {entry.status.code for entry in entries}
        status = entries[0].status if len(codes) == 1 else definitions.Status(code=definitions.MULTIPLE_RESULTS)
        return services.AckMessageResponse(status=status if entries else ok(), entries=entries)

    def change(self, request: Proto, caller: Caller) -> Proto:
        """The answer to `ChangeInvisibleDuration`.

        Raises:
            GatewayRefusal: `INVALID_RECEIPT_HANDLE` or `ILLEGAL_INVISIBLE_TIME`.
        """
        duration_s = invisible_s(request.invisible_duration)
        names = topic_name(request.topic), group_name(request.group)
        handle = self._deliveries.change(request.receipt_handle, *names, caller, duration_s)
        return services.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=handle)

    def give_up(self, request: Proto, caller: Caller) -> Proto:
        """The answer to `ForwardMessageToDeadLetterQueue`.

        Raises:
            GatewayRefusal: `INVALID_RECEIPT_HANDLE`.
        """
        names = topic_name(request.topic), group_name(request.group)
        dead = partial(ReceivedMessage.retry, max_attempts=1, remark=_DEAD)
        self._finish(request.receipt_handle, *names, caller, dead)
        return services.ForwardMessageToDeadLetterQueueResponse(status=ok())

    def client_ended(self, client: str) -> None:
        """Let other clients have a push consumer's messages at once, since it has ended."""
        self._deliveries.client_ended(client)

    async def close(self) -> None:
        """Write the receipts, and leave all groups; waiting calls get no message."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        for what, reader in list(self._readers.items()):
            self._deliveries.put_off(reader)
            self._end(what)
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LEAVE_S)

    def _acknowledged(self, entry: Proto, topic: str, group: str, caller: Caller) -> Proto:
        status = ok()
        try:
            self._finish(entry.receipt_handle, topic, group, caller, ReceivedMessage.done)
        except GatewayRefusal as error:
            status = status_of(error)
        return services.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    def _finish(
        self, handle: str, topic: str, group: str, caller: Caller, finish: Callable[[ReceivedMessage], None]
    ) -> None:
        """Finish the message of a handle, and give out what waits for that."""
        found = self._deliveries.end(handle, topic, group, caller)
        finish(found.message)
        if not found.message.finished:
            msg = f"{found.message!r} can't be finished any more, since the group's tables fail; it comes again"
            raise GatewayRefusal(msg, "INVALID_RECEIPT_HANDLE")
        found.reader.passed(found.message)

    async def _slow_down(self, error: GatewayRefusal, client: str, wait_s: float) -> None:
        """Let a client wait that asks for too much: it may ask again without end, and others would have no time."""
        if error.code == "TOO_MANY_REQUESTS":
            self._flood.say("refused calls of client %.100r: %s", client, error)
            await asyncio.sleep(min(max(wait_s, _LEAST_REFUSED_S), _REFUSED_S))

    @contextmanager
    def _waiting(self, client: str) -> Iterator[None]:
        """Count a waiting call of a client within the `with` block, up to `_MOST_CALLS_OF_CLIENT`."""
        if self._calls[client] >= _MOST_CALLS_OF_CLIENT:
            msg = f"a client may wait in {_MOST_CALLS_OF_CLIENT} calls at a time; use fewer"
            raise GatewayRefusal(msg, "TOO_MANY_REQUESTS")
        self._calls[client] += 1
        try:
            yield
        finally:
            self._calls[client] -= 1
            if not self._calls[client]:
                del self._calls[client]

    async def _reader(self, what: Subscribed, caller: Caller) -> Reader:
        if not self._is_reading(what):
            self._check_room(caller)
            consumer = await asyncio.to_thread(self._consumer, what)
            if not self._is_reading(what):  # another call may have made a reader meanwhile
                self._end(what)
                self._check_room(caller)
                self._readers[what] = Reader(consumer, caller.client, is_allowed(what.group, self._fifo))
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_after())
        return self._readers[what]

    def _is_reading(self, what: Subscribed) -> bool:
        if self._is_closed:
            msg = "the gateway ends; call another one"
            raise GatewayRefusal(msg, "HA_NOT_AVAILABLE")
        return what in self._readers and not self._readers[what].is_over

    def _check_room(self, caller: Caller) -> None:
        readers = list(self._readers.values())
        of_client = sum(reader.client == caller.client for reader in readers)
        if len(readers) + len(self._ending) >= _MOST_READERS or of_client >= _MOST_OF_CLIENT:
            msg = f"a client may have {_MOST_OF_CLIENT} subscriptions at a time, and all {_MOST_READERS}; use fewer"
            raise GatewayRefusal(msg, "TOO_MANY_REQUESTS")

    def _consumer(self, what: Subscribed) -> Consumer:
        """A consumer that has not begun. Not for the event loop, since parsing a condition takes some 50 ms."""
        group, topic, tags, where = what
        check_filter(tags, where)
        try:
            return consume(self._settings, topic, group=group, tags=tags, where=where, poll=POLL, lease=LEASE)
        except (ConfigError, WarehouseError) as error:  # the place of the tables can't be read without Spark
            raise GatewayRefusal(str(error), "UNSUPPORTED") from error

    async def _look_after(self) -> None:
        """Each second: messages of queues that go to other instances, pauses that are over, readers nobody uses."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._end_idle()

    def _end_idle(self) -> None:  # apart, so that the task refers to no reader while it sleeps
        for what, reader in list(self._readers.items()):
            reader.release()
            if reader.is_over or reader.is_idle(IDLE_S):
                self._end(what)

    def _end(self, what: Subscribed) -> None:
        reader = self._readers.pop(what, None)
        if reader is None:
            return
        self._deliveries.forget(reader)
        reader.stop()
        if not reader.left.done():
            self._ending.add(reader.left)
            reader.left.add_done_callback(self._ending.discard)
