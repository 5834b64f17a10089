"""Notes the outcomes of messages; messages refer to it."""

from __future__ import annotations

import logging
import os
import weakref

from commitlake.clients.consumer.arguments import seconds, whole
from commitlake.clients.consumer.group_member import GroupMember
from commitlake.clients.consumer.lanes import InFlight
from commitlake.clients.consumer.receipts import Attempt
from commitlake.errors import ConsumerError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import Duration
from commitlake.reading.forks import SPAWN

log = logging.getLogger(__name__)

FORKED = (
    "this consumer has begun in another process, from which this one was forked; its messages come, and are finished, "
    f"only there; {SPAWN}, and make a consumer in each"
)
UNPICKLED = (
    "a received message is not pickled or copied, since it is finished in the process that got it; send what the work "
    "needs, such as message.body and message.position, and call done() or retry() here"
)


class Outcomes:
    """Notes the outcomes of messages. Messages refer to it; once nothing does any more, the member leaves its group.

    Args:
        topic: topic of the messages.
        member: takes the receipts.
    """

    def __init__(self, topic: str, member: GroupMember) -> None:
        self.topic, self._member, self._pid = topic, member, os.getpid()
        weakref.finalize(self, member.abandon).atexit = False

    def finish(self, handed: list[InFlight], state: str, due_ms: int | None = None, remark: str | None = None) -> None:
        """Note the outcome of messages.

        Args:
            handed: the messages.
            state: `DONE`, `RETRY` or `DEAD`.
            due_ms: when the next attempt is due, ms since epoch, UTC; None without one.
            remark: any text, for the receipt.

        Raises:
            ConsumerError: this process was forked from the one that owns the messages.
        """
        if self._pid != os.getpid():
            raise ConsumerError(FORKED)
        if remark is not None:
            # `remark` may be any object, such as an exception; and an Arrow table takes no lone surrogate.
            remark = str(remark).encode(errors="replace").decode()
        if self._member.is_closed:
            log.warning("a message of %s was finished after its consumer was closed; it comes again", self.topic)
            return
        for part in handed:
            outcome = Attempt(state, part.attempt, part.round, due_ms, remark, now_ms())
            self._member.lanes.finish(part, outcome)

    def retry(self, handed: list[InFlight], after: Duration, most: int, remark: str | None) -> None:
        """Note a retry of messages, or that they are dead letters after `most` attempts."""
        due = now_ms() + int(seconds("after", after) * 1_000)
        if handed[0].attempt >= whole("most", most):
            self.finish(handed, "DEAD", remark=remark)
        else:
            self.finish(handed, "RETRY", due, remark)

    def release(self, handed: InFlight) -> bool:
        """Give up a message if its queue goes to another instance; False if the queue stays here."""
        return self._member.lanes.release(handed)

    def is_late(self) -> bool:
        """Whether other instances may have taken the queues meanwhile."""
        return self._member.is_late()
