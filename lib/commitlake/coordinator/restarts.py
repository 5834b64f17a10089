"""Restarts of all queries within the process: after which errors, and after which pause."""

from __future__ import annotations

import logging

from commitlake import errors
from commitlake.kafka.throttled import ThrottledWarning

log = logging.getLogger(__name__)

PAUSES_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""A pause for each restart in a row. A failure that outlasts these five minutes and six starts ends the process."""
KAFKA_S = 5.0
"""Pause between two attempts while Kafka is away; each attempt takes up to 8 s."""
_FORGOTTEN_S = 600.0
_LASTING = (errors.FencedError, errors.IdentityError, errors.ConfigError, errors.SetupError, errors.DoubledError)
"""Errors that do not pass by themselves, or must not be ignored."""


def is_outage(error: errors.CommitLakeError | None) -> bool:
    """Whether the error is an outage of Kafka: nothing else is wrong, and no restart of the process helps."""
    return isinstance(error, errors.KafkaError) and not isinstance(error, errors.IdentityError)


class Restarts:
    """Counts restarts in a row. An outage of Kafka, or a run of more than ten minutes, begins a new count."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._outage = ThrottledWarning(log)

    def pause_s(self, error: errors.CommitLakeError, ran_s: float) -> float | None:
        """Seconds until all queries restart; None when they must not.

        While Kafka is away, the number of restarts has no limit.

        Args:
            error: the error that ended the queries, or their start.
            ran_s: how long they ran, 0 when they did not.
        """
        self._in_a_row = 0 if ran_s > _FORGOTTEN_S else self._in_a_row
        if is_outage(error):
            self._in_a_row = 0  # the failures before it had the same cause
            self._outage.say("all queries wait for Kafka, and nothing is lost: %s", error)
            return KAFKA_S
        if isinstance(error, _LASTING) or self._in_a_row == len(PAUSES_S):
            return None
        pause_s = PAUSES_S[self._in_a_row]
        self._in_a_row += 1
        tries = f"{self._in_a_row} of {len(PAUSES_S)}"
        what = error.what if isinstance(error, errors.StreamError) else error
        log.warning("all queries begin again in %.0f s, try %s, and nothing is lost: %s", pause_s, tries, what)
        return pause_s

    def begun(self, after_s: float) -> None:
        """Logs that all queries run again, so many seconds after they had ended."""
        self._outage = ThrottledWarning(log)
        log.warning("all queries run again, after %.0f s", after_s)
