"""The watermark: the broker time up to which every record has landed. Deadlines never run ahead of it.

A lagging or stalled landing, or a backlog that is taken in steps, then discards nothing whose op is in Kafka.
"""

from __future__ import annotations

from commitlake.coordinator.landing.positions import LandingPosition, Offsets
from commitlake.protocol.statemachine.rows import ABSENT

_MOST = 256
"""Answers of Kafka that are remembered; a backlog of hours brings one in some seconds."""


class Watermark:
    """The rule: what Kafka held when it was asked has landed when the position is past it.

    Attributes:
        until: where it stands, ms since epoch, UTC; -1 before the first answer has landed.
    """

    def __init__(self) -> None:
        self.until = ABSENT
        self._asked: list[tuple[int, Offsets]] = []

    def ask(self, asked_ms: int, ends: Offsets) -> None:
        """Remembers where the logs ended.

        Args:
            asked_ms: a broker's time before it was asked (ms since epoch, UTC): all that it had stored until then lies
                below the ends.
            ends: the next offset of each partition, by source.
        """
        self._asked.append((asked_ms, ends))
        if len(self._asked) > _MOST:
            del self._asked[1::2]  # coarser steps, but it still goes on

    def landed(self, position: LandingPosition) -> int:
        """Takes how far landing has come; returns the watermark. A clock that was wrong is soon forgotten."""
        for at in reversed(range(len(self._asked))):
            asked_ms, ends = self._asked[at]
            if position.is_past(ends):
                self.until = asked_ms
                del self._asked[: at + 1]
                break
        return self.until
