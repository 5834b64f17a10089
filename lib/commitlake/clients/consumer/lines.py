"""Lines of messages, one for each key: the first one is worked on, or waits for its next attempt, before the others.

No receipt tells of a failed attempt of the first one: another instance would begin behind it. So its attempts and its
pause are in memory only, and restart in another instance.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from commitlake.clients.consumer.message import ReceivedMessage


@dataclass(eq=False)
class Line:
    """Messages of one key, in order.

    Attributes:
        messages: the messages.
        failed: failed attempts of the first one.
        due_s: when its next attempt may begin, by a monotonic clock; None while somebody has it.
    """

    messages: deque[ReceivedMessage] = field(default_factory=deque)
    failed: int = 0
    due_s: float | None = None


class Lines:
    """All lines of an instance, by key; its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, Line] = {}
        self._lock = threading.Lock()

    def join(self, key: Hashable, message: ReceivedMessage) -> bool:
        """Add a message to its line; True when it is the first one, which the caller has now."""
        with self._lock:
            line = self._lines.setdefault(key, Line())
            line.messages.append(message)
            return len(line.messages) == 1

    def failed(self, key: Hashable) -> int:
        """Failed attempts of the first one of a line."""
        return self._lines[key].failed

    def pause(self, key: Hashable, pause_s: float) -> None:
        """Note a failed attempt of the first one, whose next attempt is due after a pause."""
        with self._lock:
            line = self._lines[key]
            line.failed, line.due_s = line.failed + 1, time.monotonic() + pause_s

    def passed(self, key: Hashable) -> ReceivedMessage | None:
        """Remove the first one; return the next one, which the caller has now, or None at the end of the line."""
        with self._lock:
            line = self._lines[key]
            line.messages.popleft()
            line.failed = 0
            if not line.messages:
                del self._lines[key]
            return line.messages[0] if line.messages else None

    def due(self) -> list[tuple[Hashable, ReceivedMessage]]:
        """The first ones whose pause is over, with their keys; the caller has them now."""
        with self._lock:
            now = time.monotonic()
            found = [(key, line) for key, line in self._lines.items() if line.due_s is not None and line.due_s <= now]
            for _, line in found:
                line.due_s = None
            return [(key, line.messages[0]) for key, line in found]

    def release(self) -> None:
        """Give up the messages that nobody has and whose queue goes to another instance.

        Messages of one text in `keys` are in several queues; those in queues that stay continue here.
        """
        with self._lock:
            for key, line in list(self._lines.items()):
                first, is_held = line.messages[0], line.due_s is None
                line.messages = deque(
                    each for each in line.messages if (each is first and is_held) or not each.release()
                )
                if not line.messages:
                    del self._lines[key]
                elif line.messages[0] is not first:
                    line.failed, line.due_s = 0, 0.0

    def is_busy(self) -> bool:
        """Whether somebody has the first one of any line, or it is due."""
        with self._lock:
            now = time.monotonic()
            return any(line.due_s is None or line.due_s <= now for line in self._lines.values())

    def stuck(self, most: int) -> list[Line]:
        """Lines of more than `most` messages behind one that has failed."""
        with self._lock:
            return [line for line in self._lines.values() if line.failed and len(line.messages) > most]
