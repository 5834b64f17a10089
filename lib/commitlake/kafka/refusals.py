"""Refusals by Kafka, reported at once.

kafka-python retries a wrong password, or a certificate that it does not trust, until its timeout, and then reports only
the timeout. With `Client` as its `kafka_client` it gives up after the first refusal by each bootstrap server.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from commitlake.kafka.throttled import ThrottledFilter

LOGIN = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
DENIED = "AuthorizationFailedError"
"""Suffix of the names of authorization errors; when a producer starts, kafka-python keeps only their text."""
TLS = "[SSL: "
"""Prefix of OpenSSL's errors; kafka-python keeps only their text."""
_HUNG_UP = "socket disconnected"
_HANG_UPS = 3
"""Kafka answers a refused login and closes the connection; kafka-python loses an answer that arrives with the close."""


def _quieten_kafka_python() -> None:
    """Adds the filter to kafka-python's loggers; lines of the application's own clients stay as they are."""
    throttled = ThrottledFilter()
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka."):
            logging.getLogger(name).addFilter(throttled)


_quieten_kafka_python()


class Loop(NetworkSelector):  # type: ignore[misc]
    """kafka-python's loop, in a thread with a name of this package."""

    def run_forever(self) -> None:
        """Runs in the loop's thread, and names it."""
        threading.current_thread().name = "commitlake-kafka"
        super().run_forever()


class Client(KafkaNetClient):  # type: ignore[misc]
    """kafka-python's client, but its first contact fails with the refusal instead of a timeout.

    `net` is a loop that it shares with other clients; without one it has its own.
    """

    def __init__(self, net: NetworkSelector | None = None, **configs: Any) -> None:
        self._end = self._part if net else self._close_all
        net = net or Loop(**configs)
        super().__init__(net, _Connections(net, self._end, **configs), **configs)

    def close(self, node_id: Any = None) -> None:
        """Close the connection to a node, or all connections; a loop that other clients use stays."""
        if node_id is None:
            self._end()
        else:
            super().close(node_id)

    def _part(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._net.run(self._manager.close)

    def _close_all(self) -> None:
        super().close()


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Counts refusals until the first contact is made; a later one may come from a broker that is starting."""

    def __init__(self, net: NetworkSelector, end: Callable[[], None], **configs: Any) -> None:
        self._refusals: dict[str, Exception] = {}
        self._hang_ups: Counter[str] = Counter()
        self._has_met = self.closed = False
        self._end = end
        super().__init__(net, **configs)

    def bootstrap(self, timeout_ms: int | None = None, refresh: bool = True) -> None:
        """Makes contact. When the first one fails, the client's constructor fails too and would leave its thread."""
        try:
            super().bootstrap(timeout_ms, refresh)
        except BaseException:
            if not self._has_met:
                self._end()
            raise
        self._has_met = True

    def close_idle_connections(self) -> None:
        """Stops once closed: it schedules itself again, on a loop that may outlast this client."""
        if not self.closed:
            super().close_idle_connections()

    def get_connection(self, node_id: Any, **options: Any) -> Any:
        if not self.bootstrapped and len(self._refusals) >= len(self.cluster.bootstrap_brokers()):
            raise next(iter(self._refusals.values()))
        connection = super().get_connection(node_id, **options)
        connection.init_future.add_errback(lambda error: self._note(node_id, error))
        return connection

    def _note(self, node_id: str, error: Exception) -> None:
        if is_refusal(error):
            self._refusals[node_id] = error
        elif self.config["sasl_mechanism"] and _HUNG_UP in str(error):
            self._hang_ups[node_id] += 1
            if self._hang_ups[node_id] >= _HANG_UPS:
                self._refusals[node_id] = kafka_errors.SaslAuthenticationFailedError("it disconnects during the login")


def is_refusal(error: BaseException) -> bool:
    """Whether Kafka has answered, and a retry would get the same answer."""
    return isinstance(error, LOGIN) or DENIED in str(error) or TLS in str(error)
