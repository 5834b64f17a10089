"""The current ends of Kafka's logs, asked for in each round over one lasting connection, and what is held back there.

Behind an open transaction of Kafka's own no record of its partition lands.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from kafka import KafkaAdminClient

from commitlake.config import Config
from commitlake.errors import IdentityError, KafkaError
from commitlake.kafka.admin_client import connect
from commitlake.kafka.log_ends import LogEnds, Offsets, Place, cuts, deposed
from commitlake.kafka.throttled import Throttle
from commitlake.kafka.topics import log_ends

log = logging.getLogger(__name__)

_LOOK_S = 10.0
_LONG_S = 30.0
"""Longer than the transaction of a program that works. By default Kafka ends a transaction after 60 s."""


class LogEndWatcher:
    """Asks where the logs of all topics that land end, and calls `tell` with that; used by one thread at a time.

    `known` is where the logs ended before.
    """

    def __init__(self, config: Config, known: LogEnds, tell: Callable[[LogEnds], None]) -> None:
        self._config, self._known, self._tell = config, known, tell
        self._stack = ExitStack()
        self._client: KafkaAdminClient | None = None
        self._open = OpenTransactions(config)

    def ends(self) -> dict[Place, int]:
        """The next offset that each partition gets.

        Raises:
            IdentityError: a log has lost its end since.
            KafkaError: Kafka is out of reach, or a deposed leader answered: it may have less than has landed.
        """
        try:
            client = self._client = self._client or self._stack.enter_context(connect(self._config))
            now = log_ends(client, self._config)
            self._refuse_deposed(now)
            self._refuse_cut(cuts(client, self._config, self._known, now))
            self._open.look(client, now)
        except KafkaError:
            self.close()
            raise
        except Exception as error:  # kafka-python also raises the error that ended its thread
            self.close()
            msg = f"asking Kafka at {self._config.kafka.bootstrap_servers} for its offsets failed: {error}"
            raise KafkaError(msg) from error
        self._known = now
        self._tell(now)
        return {place: end.offset for place, end in now.items()}

    def _refuse_deposed(self, now: LogEnds) -> None:
        places = [f"{self._config.kafka.topic(source)}-{number}" for source, number in deposed(self._known, now)]
        if places:
            msg = (
                f"brokers that led before have answered for {', '.join(places)}; this ends when they know of their "
                "successors; after a restore of Kafka start again"
            )
            raise KafkaError(msg)

    def _refuse_cut(self, lost: Offsets) -> None:
        topic = self._config.kafka.topic
        places = [f"{topic(source)}-{number} from offset {offset} on" for (source, number), offset in lost.items()]
        if places:
            msg = (
                f"Kafka has lost records that it had acknowledged (an unclean leader election): {', '.join(places)}; "
                "start again: the start says what to do"
            )
            raise IdentityError(msg)

    def close(self) -> None:
        """Ends the connection; the next call of `ends` opens another."""
        self._client = None
        with suppress(Exception):  # the connection itself may have failed
            self._stack.close()


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
    stable = log_ends(client, config, stable=True)
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
