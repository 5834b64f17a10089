"""An outage of Kafka while messages go there: they wait in the client, in order, and a warning is logged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from commitlake.config import Config
from commitlake.errors import KafkaError
from commitlake.kafka.topics import is_there

log = logging.getLogger(__name__)

_LONGEST = str((1 << 31) - 1)  # ms; 24 days
WAIT = {"kafka.delivery.timeout.ms": _LONGEST, "kafka.max.block.ms": _LONGEST}
"""Kafka's client retries in order. After its default of two minutes an error would end the query, and later records of
the queue could follow one that the client gave up."""
_FIRST_S = 10.0
_EACH_S = 60.0


@contextmanager
def warning_of_outage(config: Config, what: str, target: str) -> Iterator[None]:
    """Warn once a minute while the work in the context takes long because Kafka is away.

    Args:
        config: says where Kafka is.
        what: the name of the work.
        target: the Kafka topic that is written to.
    """
    done = threading.Event()
    threading.Thread(target=_tell, args=(config, what, target, done), name=f"commitlake-{target}", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _tell(config: Config, what: str, target: str, done: threading.Event) -> None:
    begun, wait_s = time.monotonic(), _FIRST_S
    while not done.wait(wait_s):
        wait_s, reason = _EACH_S, _trouble(config, target)
        if reason and not done.is_set():
            log.warning("%s waits for %.0f s, and goes on in order: %s", what, time.monotonic() - begun, reason)


def _trouble(config: Config, target: str) -> str:
    try:
        return "" if is_there(config, target) else f"the Kafka topic {target} is not there; create it"
    except KafkaError as error:
        return str(error)
