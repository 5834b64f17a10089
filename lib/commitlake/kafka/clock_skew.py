"""The driver's clock compared with the broker's, by which ages and due times count."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from commitlake.config import Config
from commitlake.kafka.admin_client import connect
from commitlake.protocol.clock import BrokerClock, now_ms
from commitlake.protocol.kafka_topics import SETTINGS

log = logging.getLogger(__name__)

TOLERATED_MS = 1_000
"""As long as a trigger interval: with a smaller skew nothing is visibly early or late."""


@dataclass(frozen=True)
class Skew:
    """The driver's clock is `ahead_ms` ahead of the broker's (below 0: behind), accurate to `error_ms`."""

    ahead_ms: float
    error_ms: float

    @property
    def is_certain(self) -> bool:
        """Whether the clocks are further apart than tolerated even if the error is as large as it can be."""
        return abs(self.ahead_ms) - self.error_ms > TOLERATED_MS


def measured(append: Callable[[int], int], clock: BrokerClock | None = None) -> Skew:
    """The skew by one record: `append` sends it with the given time, and returns its append time.

    Both times are in ms since epoch, UTC. A `clock` is set by the append time. The broker appends the record during the
    round trip, so the error is half of that.
    """
    sent = now_ms()
    appended = append(sent)
    if clock is not None:
        clock.set(appended)
    acknowledged = now_ms()
    return Skew((sent + acknowledged) / 2 - appended, (acknowledged - sent) / 2)


def newest_ms(config: Config) -> int | None:
    """The newest append time of the settings, ms since epoch, UTC; None where there are none.

    Other topics may keep the time of a producer's clock.

    Raises:
        KafkaError: Kafka is out of reach, or refuses.
    """
    with connect(config) as client:
        there = [each for each in client.describe_topics([config.kafka.topic(SETTINGS)]) if not each["error_code"]]
        parts = [TopicPartition(each["name"], part["partition_index"]) for each in there for part in each["partitions"]]
        found = client.list_partition_offsets(dict.fromkeys(parts, OffsetSpec.MAX_TIMESTAMP)) if parts else {}
    return max((each.timestamp for each in found.values() if each.timestamp >= 0), default=None)


def warn(skew: Skew) -> None:
    """Log the effect of a skew that is certain, and what to do about it."""
    if skew.is_certain:
        log.warning(
            "the driver's clock is %.1f s %s Kafka's: checks and delayed messages go by Kafka's, but retention, "
            "maintenance and the times of starts and refusals by the driver's; set the clocks of both machines by NTP",
            abs(skew.ahead_ms) / 1_000,
            "ahead of" if skew.ahead_ms > 0 else "behind",
        )
