"""The message groups of a FIFO consumer group: the next message is given out when the one before is finished."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from commitlake.clients.consumer.message import ReceivedMessage


class Lines:
    """A line of messages for each message group, of which only the first one is given out.

    A message without a group, or of a consumer group that is not FIFO, is in no line. When the first one of a line
    is to come again is kept in memory: after a receipt, another gateway would begin behind it. Attempts restart there.

    `give` lets the next client that asks have a message.
    """

    def __init__(self, is_fifo: bool, give: Callable[[ReceivedMessage], None]) -> None:
        self._is_fifo, self._give = is_fifo, give
        self._behind: dict[bytes, deque[ReceivedMessage]] = {}
        self._failed: dict[ReceivedMessage, int] = {}
        self._paused: dict[ReceivedMessage, asyncio.TimerHandle] = {}

    def key(self, message: ReceivedMessage) -> bytes | None:
        """The line of a message; None without one."""
        return message.sharding_key if self._is_fifo else None

    def attempt(self, message: ReceivedMessage) -> int:
        """Number of the delivery to the group, 1 for the first."""
        return message.attempt + self._failed.get(message, 0)

    def admit(self, message: ReceivedMessage) -> bool:
        """Whether a new message may be given out now; if not, it waits in its line."""
        key = self.key(message)
        if key is None:
            return True
        if key in self._behind:
            self._behind[key].append(message)
            return False
        self._behind[key] = deque()
        return True

    def passed(self, message: ReceivedMessage) -> None:
        """Give out the next one of a line, once the first one is finished, or another gateway has it.

        A message that could not be finished, since the group's tables fail, comes again: nothing may pass it.
        """
        key = self.key(message)
        if key is None or message.handed.is_open:
            return
        self._failed.pop(message, None)
        if self._behind[key]:
            self._give(self._behind[key].popleft())
        else:
            del self._behind[key]

    def retry(self, message: ReceivedMessage, after_s: float, most: int, remark: str) -> None:
        """Have a message come again; after `most` attempts it is a dead letter. What is behind it in a line waits."""
        if self.key(message) is None:
            message.retry(after_s, most, remark)
        elif self.attempt(message) < most:
            self._failed[message] = self._failed.get(message, 0) + 1
            self._paused[message] = asyncio.get_running_loop().call_later(after_s, self._resume, message)
        else:
            message.retry(max_attempts=1, remark=remark)
            self.passed(message)

    def release(self) -> None:
        """Give up the messages in lines that no client has and whose queue goes to another gateway."""
        for key, behind in self._behind.items():
            self._behind[key] = deque(each for each in behind if not each.release())
        for message in [each for each in self._paused if each.release()]:
            self._paused.pop(message).cancel()
            self.passed(message)

    def close(self) -> None:
        """Wait for no pause any more: the timers would keep the messages in memory, for 12 h at most."""
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()

    def _resume(self, message: ReceivedMessage) -> None:
        del self._paused[message]
        self._give(message)
