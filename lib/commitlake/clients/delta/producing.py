"""What a Delta transaction and a sink both need: a deadline, a producer, places that others find."""

from __future__ import annotations

from commitlake.clients.producer.transactional import TransactionMQProducer
from commitlake.config import Config
from commitlake.config.locations import is_local, local_path
from commitlake.errors import ConfigError
from commitlake.protocol.durations import Duration, duration_ms


def deadline_ms(what: str, settings: Config, deadline: Duration) -> int:
    """The deadline in ms.

    Raises:
        ConfigError: it is no duration, or the Kafka address is `embedded`.
    """
    ms = duration_ms(deadline)
    if not ms or settings.kafka.is_embedded:
        msg = (
            f"{what}: deadline {deadline!r} and Kafka at {settings.kafka.bootstrap_servers!r} are not allowed; "
            "give a time such as '1h', and the address of the broker in kafka.bootstrap_servers"
        )
        raise ConfigError(msg)
    return ms


def absolute(place: str) -> str:
    """A place as the coordinator finds it, whose working directory is another one."""
    return str(local_path(place).absolute()) if is_local(place) else place


def producer_of(settings: Config, group: str) -> TransactionMQProducer:
    """A producer, not started. It has no listener: the coordinator's rule answers its checks."""
    kafka = settings.kafka
    return TransactionMQProducer(
        group, bootstrap_servers=kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix, options=kafka.options
    )
