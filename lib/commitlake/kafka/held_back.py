"""Records that Kafka's own transactions hold back: behind an open one, no record of its partition lands."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from kafka import KafkaAdminClient

from commitlake.config import Config
from commitlake.kafka.log_ends import LogEnds, Place
from commitlake.kafka.topics import log_ends
from commitlake.throttled import Throttle

log = logging.getLogger(__name__)

_LOOK_S = 10.0
_LONG_S = 30.0
"""Longer than the transaction of a program that works. By default Kafka ends a transaction after 60 s."""


class HeldBack(NamedTuple):
    """Records of a partition behind a Kafka transaction that is open: the offset of the first, and their number."""

    offset: int
    records: int


def held_back(client: KafkaAdminClient, config: Config, ends: LogEnds) -> dict[Place, HeldBack]:
    """The records that open transactions hold back; none when landing reads uncommitted records, too.

    `ends` are those of just now.
    """
    if not config.kafka.reads_committed:
        return {}
    stable = log_ends(client, config, sorted({source for source, _ in ends}), stable=True)
    return {
        place: HeldBack(low, end.offset - low)
        for place, end in ends.items()
        if (low := stable[place].offset) < end.offset
    }


class OpenTransactions:
    """Warns of Kafka transactions that stay open; used by one thread at a time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._looked_at, self._throttle = float("-inf"), Throttle()
        self._since: dict[tuple[Place, int], float] = {}

    def look(self, client: KafkaAdminClient, ends: LogEnds) -> None:
        """Look every 10 s, and warn when a transaction holds a partition for 30 s."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at, found = now, held_back(client, self._config, ends)
        keys = [(place, each.offset) for place, each in found.items()]
        self._since = {key: self._since.get(key, now) for key in keys}
        long = sorted(key for key, since in self._since.items() if now - since >= _LONG_S)
        if long and self._throttle.is_due():
            log.warning(
                "Kafka transactions are open for %.0f s and more: %s; until they end nothing behind them lands, no "
                "check is sent and no deadline passes; Kafka ends one after its producer's transaction.timeout.ms, and "
                "kafka-transactions.sh find-hanging lists those that it does not, which abort ends",
                now - min(self._since[key] for key in long),
                ", ".join(f"{self._config.kafka.topic(source)}-{number} from offset {offset} on"
                          for (source, number), offset in long),
            )  # fmt: skip
