"""Messages as Arrow tables, for work on many at once."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa

from commitlake.clients.consumer.lanes import InFlight
from commitlake.clients.consumer.outcomes import UNPICKLED, Outcomes
from commitlake.errors import ConsumerError
from commitlake.protocol.durations import Duration


class MessageBatch:
    """Messages that were handed over together: call `done` or `retry` when the work on all of them has ended.

    Attributes:
        topic: the topic.
        table: the rows in the order of the topic, with the columns of a topic table (docs/contract.md, chapter 3).
    """

    __slots__ = ("_handed", "_outcomes", "table", "topic")

    def __init__(self, outcomes: Outcomes, handed: list[InFlight], table: pa.Table) -> None:
        self._outcomes, self._handed = outcomes, handed
        self.topic, self.table = outcomes.topic, table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def attempt(self) -> int:
        """Number of this delivery to the group: 1 for the first."""
        return self._handed[0].attempt

    def done(self, remark: str | None = None) -> None:
        """Note that the group has finished its work on these messages; `remark` is for the receipts."""
        self._outcomes.finish(self._handed, "DONE", remark=remark)

    def retry(self, after: Duration = "10s", most: int = 16, remark: str | None = None) -> None:
        """Have them redelivered later; see `ReceivedMessage.retry`.

        Raises:
            ConsumerError: `after` is no duration, or `most` no whole number from 1.
        """
        self._outcomes.retry(self._handed, after, most, remark)

    def __reduce__(self) -> NoReturn:
        """Refuse pickle and copies: only this process can finish the messages.

        Raises:
            ConsumerError: always.
        """
        raise ConsumerError(UNPICKLED)

    def __repr__(self) -> str:
        """Show the number of messages, and no content."""
        return f"<MessageBatch {self.topic} messages={len(self)} attempt={self.attempt}>"
