"""When the segments of the state machine must be called next."""

from __future__ import annotations

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_table import SegmentKey


class Timers:
    """The next due time of each segment in which something is open, in ms since epoch, UTC."""

    def __init__(self) -> None:
        self._next: dict[SegmentKey, int] = {}

    def note(self, events: Events) -> None:
        """Takes the next due times from the events of a batch."""
        for key, at in events.next_due().items():
            if at is None:
                self._next.pop(key, None)
            else:
                self._next[key] = at

    def due(self, until: int) -> list[SegmentKey]:
        """The segments that are due by `until`, ms since epoch, UTC."""
        return [key for key, at in list(self._next.items()) if at <= until]
