"""Services beside the rounds, each enabled by a key: metrics, and rules that answer checks.

Both read the tables with libraries that are an extra, so they are loaded only where their key is set.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from commitlake.config import Config
from commitlake.coordinator.landing import start as landing_start
from commitlake.coordinator.run import Run
from commitlake.errors import KafkaError, SetupError, installed_by
from commitlake.kafka.admin_client import QUICK_TIMEOUT_MS
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.clock import BrokerClock

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)


@contextmanager
def serve_metrics(
    config: Config, run: Callable[[], Run], health: Callable[[], str | None], waits: Callable[[], bool]
) -> Iterator[None]:
    """Serve `/metrics` and `/healthz` while the context lasts, where `metrics.port` is set.

    Args:
        config: of the coordinator.
        run: returns the run whose figures are served.
        health: returns the failure, None when there is none.
        waits: whether all queries wait for Kafka; it may answer then, but not as it must, so it is not asked.

    Raises:
        SetupError: the port is taken, or a module is missing.
    """
    if not config.metrics.port:
        yield
        return
    with _extra("metrics.port"):
        from commitlake.coordinator.metrics import collect, server
    names = collect.MetricNames()

    def ends() -> Offsets:
        if waits():
            msg = "all queries wait for it"
            raise KafkaError(msg)
        return landing_start.ends(config, QUICK_TIMEOUT_MS)

    def figures() -> Iterable[Metric]:
        of = run()
        assert of.scheduler is not None  # the run has begun
        rounds, counters, position = of.scheduler.rounds, of.scheduler.counters, of.scheduler.position
        return collect.collect(config, rounds, counters, position, ends, of.epoch, of.forwarders.failed(), names)

    with server.serving(config.metrics.host, config.metrics.port, figures, health):
        yield


@contextmanager
def standing_by(config: Config) -> Iterator[None]:
    """Serve `/healthz`, and no metrics yet, while the context lasts, where `metrics.port` is set.

    Where another coordinator of this machine has the port, a warning says so.
    """
    with ExitStack() as stack:
        try:
            if config.metrics.port:
                with _extra("metrics.port"):
                    from commitlake.coordinator.metrics import server
                stack.enter_context(server.serving(config.metrics.host, config.metrics.port, tuple, lambda: None))
        except SetupError as error:
            log.warning("no /healthz while standing by: %s", error)
        yield


def answer_by_rules(config: Config, clock: BrokerClock, stop: threading.Event) -> None:
    """Answer checks by the rules of `checks`, in a thread, until `stop` is set.

    Raises:
        ConfigError: a rule can't be used.
        SetupError: a module is missing.
    """
    if not config.checks:
        return
    with _extra("checks"):
        from commitlake.coordinator.resolving.resolve import Resolver

        run = partial(Resolver(config, clock).run, stop)
    threading.Thread(target=run, name="commitlake-rules", daemon=True).start()


@contextmanager
def _extra(key: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        msg = f"{key}: the module {error.name} is missing; install it with {installed_by('all')}"
        raise SetupError(msg) from error
