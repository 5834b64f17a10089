"""Refusals by Kafka, reported at once.

kafka-python retries a wrong password, or a certificate that it does not trust, until its timeout, and then reports the
timeout only. With `Client` as its `kafka_client` it gives up after the first refusal by each bootstrap server.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

LOGIN = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
DENIED = "AuthorizationFailedError"
"""How the names of authorization errors end; when a producer starts, kafka-python keeps only their text."""
TLS = "[SSL: "
"""How OpenSSL's errors begin; kafka-python keeps only their text."""
_HUNG_UP = "socket disconnected"
_HANG_UPS = 3
"""Kafka answers a refused login and closes the connection; kafka-python loses an answer that arrives with the close."""


class Client(KafkaNetClient):  # type: ignore[misc]
    """kafka-python's client, whose first contact fails with the refusal instead of a timeout."""

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)
        super().__init__(net, _Connections(net, **configs), **configs)


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Counts refusals until the first contact is made; a later one may come from a broker that is starting."""

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        self._refusals: dict[str, Exception] = {}
        self._hang_ups: Counter[str] = Counter()
        self._has_met = False
        super().__init__(net, **configs)

    def bootstrap(self, timeout_ms: int | None = None, refresh: bool = True) -> None:
        """Makes contact; when the first one fails, so does the client's constructor, which would leave its thread."""
        try:
            super().bootstrap(timeout_ms, refresh)
        except BaseException:
            if not self._has_met:
                self._net.close()
            raise
        self._has_met = True

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
