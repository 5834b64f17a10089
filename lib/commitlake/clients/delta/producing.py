"""Helpers of Delta transactions and sinks: the deadline, the producer, and absolute places."""

from __future__ import annotations

import logging

from commitlake.clients.delta.allowed_places import DELTA_LOG
from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.config import Config
from commitlake.config.locations import is_local, local_path
from commitlake.errors import ConfigError
from commitlake.protocol.durations import Duration, duration_ms

log = logging.getLogger(__name__)


def deadline_ms(what: str, settings: Config, deadline: Duration) -> int:
    """The deadline in ms.

    Raises:
        ConfigError: `deadline` is no duration above 0, or the Kafka address is `embedded`.
    """
    if settings.kafka.is_embedded:
        msg = (
            f"{what}: kafka.bootstrap_servers: 'embedded' is not allowed; give the address of the coordinator's broker"
        )
        raise ConfigError(msg)
    ms = duration_ms(deadline)
    if not ms:
        msg = f"{what}: deadline {deadline!r} is not allowed; give a time such as '1h'"
        raise ConfigError(msg)
    return ms


def warn_without_rule(what: str, settings: Config, group: str) -> None:
    """Warn if the configuration has rules, but none that ends the transactions of a killed job of the group."""
    if settings.checks and settings.checks.get(group, {}).get("table") != DELTA_LOG:
        log.warning(
            "%s: `checks` has no rule %s: {table: %s}, so nobody ends what a killed job of this group leaves; add it, "
            "or check the group; rules are there for: %s",
            *(what, group, DELTA_LOG, ", ".join(settings.checks)),
        )


def absolute(place: str) -> str:
    """A place in absolute form, since the coordinator has another working directory."""
    return str(local_path(place).absolute()) if is_local(place) else place


def producer_of(settings: Config, group: str) -> TransactionMQProducer:
    """A producer that has not started. It has no listener: the coordinator's rule answers its checks."""
    kafka = settings.kafka
    return TransactionMQProducer(
        group, bootstrap_servers=kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix, options=kafka.options
    )
