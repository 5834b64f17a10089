"""The limits of producers, published to Kafka's topic `settings`: at a start, with new topics, and every 10 minutes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from commitlake.config import Config
from commitlake.errors import KafkaError
from commitlake.kafka import clock_skew, topics
from commitlake.kafka.throttled import ThrottledWarning
from commitlake.protocol.clock import BrokerClock

log = logging.getLogger(__name__)

_OFTEN_S, _AGAIN_S = 600.0, 30.0
"""Interval at which the settings are published and the broker's clock is read; pause before a retry."""


class SettingsPublisher:
    """Publishes the settings, and sets the clock by the append time of each record."""

    def __init__(self, config: Config, clock: BrokerClock) -> None:
        self._config, self._clock = config, clock
        self._due = time.monotonic() + _OFTEN_S
        self._lock = threading.Lock()  # else names of before could be published after those of new topics
        self._trouble = ThrottledWarning(log)

    def publish(self, names: Collection[str]) -> None:
        """Publishes at a start, with the names of the topics; warns when the driver's clock is wrong.

        Raises:
            KafkaError: Kafka did not take the settings.
        """
        clock_skew.warn(topics.publish_settings(self._config, names, self._clock))

    def add(self, names: Collection[str]) -> None:
        """Publishes with new topics. While `settings` has no leader, landing goes on and producers learn of them later.

        Later means at the next `tick`.
        """
        with self._lock:
            self._try(names, None)

    def tick(self, names: Callable[[], Collection[str]]) -> None:
        """Publishes when it is time; retries soon when Kafka did not take the settings."""
        with self._lock:
            if time.monotonic() > self._due:
                self._try(names(), self._clock)

    def _try(self, names: Collection[str], clock: BrokerClock | None) -> None:
        often, self._due = self._due, time.monotonic() + _AGAIN_S
        try:
            topics.publish_settings(self._config, names, clock)
        except KafkaError as error:
            self._trouble.say("the settings are published later, with the names of new topics: %s", error)
        else:
            self._due = often if clock is None else time.monotonic() + _OFTEN_S
            self._trouble.end()
