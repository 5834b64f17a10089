"""Kafka's refusals: told at once.

kafka-python tries a wrong password, or a certificate that it does not trust, again and again until its time is up, and
then tells that only. With `Client` as its `kafka_client` the first refusal by each bootstrap server is the last.
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
"""How the names of its errors end; of a producer's start it keeps the text only."""
TLS = "[SSL: "
"""How OpenSSL's errors begin; kafka-python keeps their text only."""
_HUNG_UP = "socket disconnected"
_HANG_UPS = 3
"""Kafka answers a refused login and hangs up, and kafka-python loses an answer that comes together with the end."""


class Client(KafkaNetClient):  # type: ignore[misc]
    """kafka-python's client, whose first contact ends with the refusal instead of a timeout."""

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)
        super().__init__(net, _Connections(net, **configs), **configs)


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Counts who refused until the first contact is made; after it a refusal may be one broker's that is starting."""

    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        self._refusals: dict[str, Exception] = {}
        self._hang_ups: Counter[str] = Counter()
        super().__init__(net, **configs)

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
                self._refusals[node_id] = kafka_errors.SaslAuthenticationFailedError("it hangs up during the login")


def is_refusal(error: BaseException) -> bool:
    """Whether Kafka has answered, and trying again would bring the same answer."""
    return isinstance(error, LOGIN) or DENIED in str(error) or TLS in str(error)
