"""The watermark: the broker time up to which every record has landed. Deadlines never run ahead of it.

So a landing that lags or stalls, or a backlog that lands in steps, discards no transaction whose op is in Kafka.
"""

from __future__ import annotations

from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.statemachine.rows import ABSENT

_MOST = 256
"""Number of Kafka's answers that are kept; a backlog of hours brings one every few seconds."""


class Watermark:
    """The watermark, by Kafka's answers where its logs end.

    The rule: when the position is past the ends of an answer, all that Kafka held at that time has landed.

    Attributes:
        until: the watermark, ms since epoch, UTC; -1 before the first answer has landed.
    """

    def __init__(self) -> None:
        self.until = ABSENT
        self._asked: list[tuple[int, Offsets]] = []

    def ask(self, asked_ms: int, ends: Offsets) -> None:
        """Remembers where the logs ended.

        Args:
            asked_ms: the broker's time before it was asked (ms since epoch, UTC): all records that it had stored until
                then lie below the ends.
            ends: the next offset of each partition.
        """
        self._asked.append((asked_ms, ends))
        if len(self._asked) > _MOST:
            del self._asked[1::2]  # coarser steps, but it still goes on

    def at(self, position: LandingPosition) -> int:
        """Advances the watermark by the position of landing; returns it.

        Each answer that has landed replaces the last, so clock errors do not persist.
        """
        for at in reversed(range(len(self._asked))):
            asked_ms, ends = self._asked[at]
            if position.is_past(ends):
                self.until = asked_ms
                del self._asked[: at + 1]
                break
        return self.until
