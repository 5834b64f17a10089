"""Whether all queries are begun again in this process, and after which pause."""

from __future__ import annotations

import logging

from commitlake.errors import (
    CommitLakeError,
    ConfigError,
    DoubledError,
    FencedError,
    IdentityError,
    KafkaError,
    SetupError,
    StreamError,
)
from commitlake.throttled import ThrottledWarning

log = logging.getLogger(__name__)

PAUSES_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""One for each time in a row: what lasts longer than these five minutes and six starts ends the process."""
KAFKA_S = 5.0
"""How long after a look for Kafka the next one comes; each takes up to 8 s."""
_FORGOTTEN_S = 600.0
_LASTING = (FencedError, IdentityError, ConfigError, SetupError, DoubledError)
"""What does not pass by itself, or must not be passed over."""


def is_outage(error: CommitLakeError | None) -> bool:
    """Whether Kafka is away: nothing else is wrong, and no start of the process helps."""
    return isinstance(error, KafkaError) and not isinstance(error, IdentityError)


class Restarts:
    """Counts them; an outage of Kafka, and a run that went well for ten minutes, begin a new count."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._outage = ThrottledWarning(log)

    def pause_s(self, error: CommitLakeError, ran_s: float) -> float | None:
        """Seconds until all queries are begun again; None when they are not.

        While Kafka is away that has no end.

        Args:
            error: what has ended them, or has failed at their start.
            ran_s: how long they ran, 0 when they did not.
        """
        self._in_a_row = 0 if ran_s > _FORGOTTEN_S else self._in_a_row
        if is_outage(error):
            self._in_a_row = 0  # whatever failed before it failed for it
            self._outage.say("all queries wait for Kafka, and nothing is lost: %s", error)
            return KAFKA_S
        if isinstance(error, _LASTING) or self._in_a_row == len(PAUSES_S):
            return None
        pause_s = PAUSES_S[self._in_a_row]
        self._in_a_row += 1
        tries = f"{self._in_a_row} of {len(PAUSES_S)}"
        what = error.what if isinstance(error, StreamError) else error
        log.warning("all queries begin again in %.0f s, try %s, and nothing is lost: %s", pause_s, tries, what)
        return pause_s

    def begun(self, after_s: float) -> None:
        """All queries run again, so many seconds after they had ended."""
        self._outage = ThrottledWarning(log)
        log.warning("all queries run again, after %.0f s", after_s)
