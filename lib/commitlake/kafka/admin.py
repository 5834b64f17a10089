"""A connection to Kafka for administration that always answers: with a client, or with a short error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from commitlake.config import Config
from commitlake.errors import KafkaError
from commitlake.kafka.clients import python_options

# kafka-python retries a wrong address until this is over.
CONNECT_TIMEOUT_MS = 8_000
REQUEST_TIMEOUT_MS = 15_000

_REFUSED = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)


@contextmanager
def connect(config: Config) -> Iterator[KafkaAdminClient]:
    """Yield an admin client, and turn what goes wrong with it into a `KafkaError` that says what to do.

    Raises:
        KafkaError: Kafka is out of reach (told within 10 s), refuses access, or answers with an error.
    """
    servers = config.kafka.bootstrap_servers
    limits = {"bootstrap_timeout_ms": CONNECT_TIMEOUT_MS, "request_timeout_ms": REQUEST_TIMEOUT_MS}
    try:
        client = KafkaAdminClient(**python_options(config.kafka) | limits)
    except (kafka_errors.KafkaError, OSError, ValueError) as error:
        raise KafkaError(_unreachable(servers, error)) from error
    try:
        yield client
    except kafka_errors.KafkaError as error:
        msg = f"Kafka at {servers} answered with {error}; {_advice(error)}"
        raise KafkaError(msg) from error
    finally:
        client.close()


def probe(config: Config) -> None:
    """Return when Kafka answers and lets this client in.

    Raises:
        KafkaError: it does not, within 10 s.
    """
    with connect(config) as client:
        client.describe_cluster()


def _unreachable(servers: str, error: Exception) -> str:
    if isinstance(error, _REFUSED):
        return f"Kafka at {servers} refuses this client: {error}; {_advice(error)}"
    return (
        f"cannot reach Kafka at {servers}: {error}; check kafka.bootstrap_servers, "
        "that the broker runs, and security.protocol in kafka.options"
    )


def _advice(error: Exception) -> str:
    if isinstance(error, kafka_errors.AuthorizationError):
        return "give this client's user the rights that docs/contract.md lists"
    if isinstance(error, _REFUSED):
        return "check security.protocol, sasl.mechanism and sasl.jaas.config in kafka.options"
    return "check the broker's state and try again"
