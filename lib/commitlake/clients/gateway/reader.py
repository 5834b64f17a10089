"""One instance of a consumer group, shared by all clients with the same subscription; it reads ahead a little."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from weakref import ref

from commitlake.clients.consumer import subscription
from commitlake.clients.consumer.consume import Consumer
from commitlake.clients.consumer.lines import Lines
from commitlake.clients.consumer.message import ReceivedMessage

AHEAD = 64
"""Messages that were read ahead and wait for a client."""
MOST_HELD, MOST_HELD_BYTES = subscription.MOST_OPEN // 4, subscription.MOST_OPEN_BYTES // 4
"""Messages, and bytes, of one client: a client that finishes nothing leaves the others most of the room."""
_LOOK_S, _CHECK_S = 0.1, 1.0
_TURNS = threading.Semaphore(2)
"""Readers that join their group at a time: dozens at once would leave the event loop no time for other calls."""


class Reader:
    """Reads messages in a thread of its own, and hands each to the client that asks first.

    `client` is the id of the client for which the reader was made. The consumer leaves the group when the reader stops.

    If the group `is_fifo`, each message group is a line of messages, of which only the first one is given out.

    Attributes:
        group: the consumer group.
        is_over: whether the reader has stopped or failed.
        left: done when the consumer has left the group.
        missed: how often clients did not get a message, by its position. Such a message is sent alone, since it may be
            the cause.
    """

    def __init__(self, consumer: Consumer, client: str, is_fifo: bool = False) -> None:
        self.client, self.group, self.is_over = client, consumer.group, False
        self._lines, self._is_fifo = Lines(), is_fifo
        self.missed: dict[str, int] = {}
        self._held: dict[str, tuple[int, int]] = {}  # by client: number and bytes of the messages that it has
        self._consumer, self._loop = consumer, asyncio.get_running_loop()
        self.left: asyncio.Future[None] = self._loop.create_future()
        self._messages: asyncio.Queue[ReceivedMessage | None] = asyncio.Queue()
        self._returned: deque[ReceivedMessage] = deque()  # handed out before the queue's
        self._room = threading.Semaphore(AHEAD)
        self._asking, self._asked_at = 0, time.monotonic()
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="commitlake-gateway-reader", daemon=True).start()

    async def take(self, client: str, most: int, wait_s: float) -> list[ReceivedMessage]:
        """Messages that are available now, else the next one; empty when none arrives within `wait_s`.

        There are at most `most`, 1 or more. A client with `MOST_HELD` messages waits until it finishes some.

        Raises:
            ConsumerError: the group's tables can't be written.
            WarehouseError: the topic can't be read.
        """
        self._asking += 1
        found: list[ReceivedMessage] = []
        try:
            async with asyncio.timeout(wait_s):
                while not self._has_room(client, found):
                    await asyncio.sleep(_LOOK_S)
                await self._take_first(found)
        except TimeoutError:
            pass
        finally:
            self._asking -= 1
            self._asked_at = time.monotonic()
        while found and len(found) < most and self._has_room(client, found) and not self._is_alone(found):
            message = self._take_now()
            if message is None:
                break
            found.append(message)
        return found

    def _is_alone(self, found: Sequence[ReceivedMessage]) -> bool:
        """Whether one of `found`, or the next message, is one that a client did not get before."""
        return bool(self.missed) and any(
            each.position in self.missed for each in (*found, *itertools.islice(self._returned, 1))
        )

    def is_idle(self, since_s: float) -> bool:
        """Whether no client has a message, waits, or has asked within the last `since_s`."""
        return not (self._asking or self._held) and time.monotonic() - self._asked_at > since_s

    def hold(self, client: str, size: int) -> None:
        """Count a message of `size` bytes that a client gets."""
        count, total = self._held.get(client, (0, 0))
        self._held[client] = count + 1, total + size

    def let_go(self, client: str, size: int) -> None:
        """Count a message of `size` bytes less."""
        count, total = self._held.pop(client)
        if count > 1:
            self._held[client] = count - 1, total - size

    def _has_room(self, client: str, found: Sequence[ReceivedMessage]) -> bool:
        """Whether a client may have more messages, besides those that it has and `found`."""
        count, total = self._held.get(client, (0, 0))
        return (
            count + len(found) < MOST_HELD and total + sum(each.handed.kept_bytes for each in found) < MOST_HELD_BYTES
        )

    def put_back(self, message: ReceivedMessage) -> None:
        """Let another client have a message, as the same attempt, which its client did not get or did not begin."""
        self._returned.append(message)
        if self._asking:
            self._messages.put_nowait(None)

    def line(self, message: ReceivedMessage) -> bytes | None:
        """The message group by which a message is in a line; None for a message that is in none."""
        return message.sharding_key if self._is_fifo else None

    def attempt(self, message: ReceivedMessage) -> int:
        """Number of the delivery of a message to the group, 1 for the first."""
        line = self.line(message)
        return message.attempt + (0 if line is None else self._lines.failed(line))

    def passed(self, message: ReceivedMessage) -> None:
        """Give out the next one of a line, once the first one is finished, or another gateway has it.

        A message that could not be finished, since the group's tables fail, comes again: nothing may pass it.
        """
        line = self.line(message)
        if line is not None and not message.handed.is_open and (behind := self._lines.passed(line)) is not None:
            self.put_back(behind)

    def retry(self, message: ReceivedMessage, after_s: float, most: int, remark: str) -> None:
        """Have a message come again; after `most` attempts it is a dead letter. What is behind it in a line waits."""
        line = self.line(message)
        if line is None:
            message.retry(after_s, most, remark)
        elif self.attempt(message) < most:
            self._lines.pause(line, after_s)
            self._loop.call_later(after_s, _resume, ref(self))  # a timer of hours must keep no reader
        else:
            message.retry(max_attempts=1, remark=remark)
            self.passed(message)

    def resume(self) -> None:
        """Give out the first ones of lines whose pause is over."""
        for _, message in self._lines.due():
            self.put_back(message)

    def release(self) -> None:
        """Give back the messages that no client has and whose queue goes to another instance."""
        self._lines.release()
        self.resume()  # what follows a first one that was given back
        returned, self._returned = self._returned, deque()
        for each in returned:
            if each.release():
                self.passed(each)
            else:
                self._returned.append(each)
        for _ in range(self._messages.qsize()):
            message = self._messages.get_nowait()
            if message is not None and message.release():
                self._room.release()
            else:
                self._messages.put_nowait(message)

    def stop(self) -> None:
        """Stop reading, and leave the group soon; unfinished messages are redelivered."""
        self._consumer.stop()
        self._room.release()
        self._end()

    async def _take_first(self, found: list[ReceivedMessage]) -> None:
        """Append the next message to `found`, so that a time-out right after that does not lose it."""
        while not found:
            if self._failure is not None:
                raise self._failure
            if self.is_over:
                return
            if message := self._take_now():
                found.append(message)
            elif self._returned:  # it is late: this instance's next sync shows who owns the queues
                await asyncio.sleep(_LOOK_S)
            else:
                self._accept(await self._messages.get())

    def _take_now(self) -> ReceivedMessage | None:
        """The next message; None if there is none now, or if another instance may have its queue."""
        while self._returned or not self._messages.empty():
            if not self._returned:
                self._accept(self._messages.get_nowait())
            elif self._returned[0].is_late():
                return None
            elif (message := self._returned.popleft()).release():
                self.passed(message)
            else:
                return message
        return None

    def _accept(self, message: ReceivedMessage | None) -> None:
        """Take over a message of the reading thread; None only wakes a waiting call."""
        if message is not None:
            self._room.release()
            line = self.line(message)
            if line is None or self._lines.join(line, message):
                self._returned.append(message)

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            with self._consumer as messages:
                with _TURNS:
                    messages.join()
                for message in messages:
                    while not self._room.acquire(timeout=_CHECK_S):
                        self._consumer.raise_if_failed()
                    self._loop.call_soon_threadsafe(self._messages.put_nowait, message)
        except Exception as error:  # `take` raises it, whatever it is
            failure = error
        with contextlib.suppress(RuntimeError):  # raised when the loop has ended
            self._loop.call_soon_threadsafe(self._leave, failure)

    def _leave(self, failure: Exception | None) -> None:
        self._failure = failure
        self._end()
        self.left.set_result(None)

    def _end(self) -> None:
        self.is_over = True
        for _ in range(self._asking):
            self._messages.put_nowait(None)


def _resume(reader: ref[Reader]) -> None:
    if (found := reader()) is not None:
        found.resume()
