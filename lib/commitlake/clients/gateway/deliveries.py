"""Messages in flight to clients: each has a receipt handle, which is valid until its invisible duration is over."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from commitlake.clients.consumer.arguments import seconds
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.runner import PAUSES
from commitlake.clients.gateway.access import Caller
from commitlake.clients.gateway.reader import Reader
from commitlake.errors import GatewayRefusal

MOST_ATTEMPTS = 16
"""Attempts before a message becomes a dead letter, as with `Consumer.run`; RocketMQ has 16 retries after the first."""
LONGEST_S = 12 * 3_600.0
"""The longest invisible duration, as in RocketMQ's proxy."""
RENEW_S, MOST_RENEWED_S = 60.0, 3 * 3_600.0
"""How often, and for how long, a push consumer's invisible duration is renewed; 3 h as in the proxy."""
AT_ONCE_S, _FAILED_S = 0.001, 10.0
GONE_S = 300.0
"""A simple consumer without a telemetry stream for so long is gone: its messages are redelivered, even if not due."""
_GONE = "its client is not connected any more"
_STOPPED = "the gateway ended before an acknowledgement"
_SILENT = "not acknowledged within its invisible duration"
_FAILED = "the client could not consume it"
_NOT_GOT = "no client got it whole; RocketMQ's clients of some languages take 4 MiB, or it went away each time"
_MOST_MISSED = 3


@dataclass(eq=False)
class HeldMessage:
    """A message in flight to a client.

    Attributes:
        message: the message.
        size: bytes that it takes in memory.
        reader: the reader that read it.
        caller: the client that has it.
        is_renewed: whether its duration is renewed while the client is connected, as for a push consumer.
        until: when the duration, or its renewal, ends, by the loop's clock.
        seen: when the client was last known to be connected, or got the message, by the loop's clock.
        timer: calls `Deliveries._expire`, which compares both times.
    """

    message: ReceivedMessage
    size: int
    reader: Reader
    caller: Caller
    is_renewed: bool
    until: float
    seen: float
    timer: asyncio.TimerHandle


class Deliveries:
    """All messages in flight to clients of this gateway. A handle is random: it holds no data and can't be guessed.

    `is_connected` tells by a client's id whether it has a telemetry stream.
    """

    def __init__(self, is_connected: Callable[[str], bool]) -> None:
        self._is_connected = is_connected
        self._open: dict[str, HeldMessage] = {}

    def begin(self, message: ReceivedMessage, reader: Reader, caller: Caller, invisible_s: float | None) -> str:
        """Note that a client gets a message, and return the receipt handle.

        After `invisible_s` it is redelivered; None: not while the client is connected.
        """
        handle, loop = secrets.token_urlsafe(18), asyncio.get_running_loop()
        now, size, is_renewed = loop.time(), message.handed.kept_bytes, invisible_s is None
        until = now + (MOST_RENEWED_S if invisible_s is None else invisible_s)
        timer = loop.call_at(min(until, now + RENEW_S), self._expire, handle)
        self._open[handle] = HeldMessage(message, size, reader, caller, is_renewed, until, now, timer)
        reader.hold(caller.client, size)
        return handle

    def end(self, handle: str, topic: str, group: str, caller: Caller) -> HeldMessage:
        """The message of a handle, which is invalid from now on.

        Raises:
            GatewayRefusal: `INVALID_RECEIPT_HANDLE`.
        """
        found = self._open.get(handle)
        if found is None or (found.message.topic, found.reader.group, found.caller.key) != (topic, group, caller.key):
            msg = (  # with the code's name, as in RocketMQ: its client for Java shows a code as a number
                f"INVALID_RECEIPT_HANDLE: {handle!r:.60} is no good receipt handle of group {group!r:.100} and topic "
                f"{topic!r:.100}: its time is over, it was used before, or another gateway gave it; what was not done "
                "comes again"
            )
            raise GatewayRefusal(msg, "INVALID_RECEIPT_HANDLE")
        return self._close(handle)

    def change(self, handle: str, topic: str, group: str, caller: Caller, invisible_s: float) -> str:
        """Redeliver a message `invisible_s` from now, and return the handle that is valid until then.

        A push consumer asks for this only after a failure. Its retry is written at once, so it does not depend on this
        gateway, and its handle is invalid from now on. RocketMQ's push consumer for Node ignores the pauses of its
        settings and sends 0: then `PAUSES` count. For a simple consumer 0 means at once.

        Raises:
            GatewayRefusal: `INVALID_RECEIPT_HANDLE`.
        """
        found = self.end(handle, topic, group, caller)
        if found.is_renewed:
            pause = PAUSES[min(found.reader.attempt(found.message), len(PAUSES)) - 1]
            found.reader.retry(found.message, invisible_s or seconds("pauses", pause), MOST_ATTEMPTS, _FAILED)
            return handle
        return self.begin(found.message, found.reader, caller, max(invisible_s, AT_ONCE_S))

    def undo(self, handle: str) -> None:
        """Let another client have a message that this client did not get or begin; does nothing when it was finished.

        No attempt is counted: a client that starts and fails all the time would make dead letters of all it fetches.
        """
        if handle in self._open:
            found = self._close(handle)
            found.reader.put_back(found.message)

    def not_got(self, handle: str) -> None:
        """Let another client have a message that this client did not get.

        The third time counts as an attempt: maybe no client can get it, since gRPC's own limit is 4 MiB, and all
        messages behind it would wait for ever.
        """
        if handle not in self._open:
            return
        found = self._open[handle]
        missed = found.reader.missed.get(found.message.position, 0) + 1
        if missed >= _MOST_MISSED:
            self.fail(handle, _NOT_GOT)
            return
        self.undo(handle)
        found.reader.missed[found.message.position] = missed

    def fail(self, handle: str, remark: str) -> None:
        """Retry a message later that could not be sent to a client."""
        self._retry(handle, _FAILED_S, remark)

    def client_ended(self, client: str) -> None:
        """Let others have a push consumer's messages when it announces its end: it has finished all that it began."""
        for handle, each in list(self._open.items()):
            if each.is_renewed and each.caller.client == client:
                self.undo(handle)

    def put_off(self, reader: Reader) -> None:
        """Write a retry, due when its duration is over, for each message of a reader that clients have.

        So the cursor can pass them, up to messages that were acknowledged behind them. The end of a gateway makes no
        message a dead letter. What is first in a line stays open instead: nothing may pass it.
        """
        now = asyncio.get_running_loop().time()
        for handle, each in list(self._open.items()):
            if each.reader is reader and reader.line(each.message) is None:
                left_s = max(AT_ONCE_S, min(each.until - now, RENEW_S if each.is_renewed else LONGEST_S))
                self._close(handle).message.retry(left_s, each.message.attempt + 1, _STOPPED)

    def forget(self, reader: Reader) -> None:
        """Make all handles of a reader that has ended invalid: another instance redelivers its messages."""
        for handle in [handle for handle, each in self._open.items() if each.reader is reader]:
            self._close(handle)

    def _close(self, handle: str) -> HeldMessage:
        found = self._open.pop(handle)
        found.timer.cancel()
        found.reader.let_go(found.caller.client, found.size)
        if found.reader.missed:
            found.reader.missed.pop(found.message.position, None)
        return found

    def _retry(self, handle: str, after_s: float, remark: str) -> None:
        found = self._close(handle)
        found.reader.retry(found.message, after_s, MOST_ATTEMPTS, remark)

    def _expire(self, handle: str) -> None:
        """Redeliver a message if its duration is over or its client is gone; otherwise look again later."""
        found, loop = self._open[handle], asyncio.get_running_loop()
        now = loop.time()
        if self._is_connected(found.caller.client):
            found.seen = now
        patience_s = 0 if found.is_renewed else GONE_S
        if now >= found.until:
            self._retry(handle, AT_ONCE_S, _SILENT)
        elif found.seen < now and now - found.seen >= patience_s:
            self._retry(handle, AT_ONCE_S, _GONE)
        else:
            found.timer = loop.call_at(min(found.until, now + RENEW_S), self._expire, handle)
