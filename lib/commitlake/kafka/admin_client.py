"""An administrative connection to Kafka whose errors say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka import errors as kafka_errors

from commitlake.config import Config, KafkaConfig
from commitlake.errors import KafkaError
from commitlake.kafka.clients import python_options
from commitlake.kafka.refusals import DENIED, LOGIN, TLS, is_refusal

CONNECT_TIMEOUT_MS = 8_000
"""How long kafka-python retries a wrong address."""
QUICK_TIMEOUT_MS = 2_000
"""How long metrics and `/healthz` wait for Kafka. Prometheus gives up the whole scrape after 10 s."""


@contextmanager
def connect(config: Config, timeout_ms: int = CONNECT_TIMEOUT_MS) -> Iterator[KafkaAdminClient]:
    """Yield an admin client, and turn its errors into a `KafkaError` that says what to do.

    To connect may take `timeout_ms`, and a request twice that time.

    Raises:
        KafkaError: Kafka is out of reach (raised within 10 s), refuses access, or answers with an error.
    """
    options = python_options(config.kafka)
    limits = {"bootstrap_timeout_ms": timeout_ms, "request_timeout_ms": 2 * timeout_ms}
    try:
        client = KafkaAdminClient(**options | limits)
    except (kafka_errors.KafkaError, OSError, ValueError) as error:
        raise KafkaError(explain(config.kafka, error)) from error
    try:
        yield client
    except kafka_errors.KafkaError as error:
        if is_refusal(error):
            raise KafkaError(explain(config.kafka, error)) from error
        msg = f"Kafka at {config.kafka.bootstrap_servers} answered with {error}; check the broker's state and try again"
        raise KafkaError(msg) from error
    finally:
        client.close()


@contextmanager
def single_records(kafka: KafkaConfig, **options: Any) -> Iterator[KafkaProducer]:
    """Yield a producer for single records, which all in-sync replicas acknowledge."""
    producer = KafkaProducer(**python_options(kafka), bootstrap_timeout_ms=CONNECT_TIMEOUT_MS, acks="all", **options)
    try:
        yield producer
    finally:
        producer.close(timeout=1)


@contextmanager
def many_records(kafka: KafkaConfig) -> Iterator[Callable[..., None]]:
    """Yield a `KafkaProducer.send` for many records, which go in batches; at the end all are acknowledged.

    Raises:
        KafkaError: Kafka is out of reach, or did not acknowledge a record.
    """
    failed: list[BaseException] = []
    try:
        with single_records(kafka, linger_ms=20, batch_size=1 << 18) as producer:

            def send(*args: Any, **given: Any) -> None:
                producer.send(*args, **given).add_errback(failed.append)

            yield send
            producer.flush(timeout=CONNECT_TIMEOUT_MS / 1_000)
    except kafka_errors.KafkaError as error:
        raise KafkaError(explain(kafka, error)) from error
    if failed:
        msg = f"Kafka at {kafka.bootstrap_servers} did not acknowledge {len(failed)} records: {failed[0]}"
        raise KafkaError(msg)


def probe(config: Config, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
    """Return when Kafka answers and accepts this client.

    Raises:
        KafkaError: Kafka does not, within about `timeout_ms`.
    """
    with connect(config, timeout_ms) as client:
        client.describe_cluster()


def explain(kafka: KafkaConfig, error: Exception) -> str:
    """Return a text of the failure between a client and Kafka, with what to do about it."""
    servers, user = kafka.bootstrap_servers, python_options(kafka).get("sasl_plain_username")
    if DENIED in str(error):
        return (
            f"Kafka at {servers} denies {f'the user {user}' if user else 'this client'} access: {error}; "
            "grant it the rights that docs/how-to/secure.md lists under Kafka ACLs"
        )
    if isinstance(error, LOGIN):
        return (
            f"Kafka at {servers} refuses this client: {error}; "
            "check security.protocol, sasl.mechanism and sasl.jaas.config in kafka.options"
        )
    if TLS in str(error):
        return (
            f"no TLS with Kafka at {servers}: {error}; check that ssl.truststore.location in kafka.options holds the "
            "CA of the broker's certificate, that this certificate names the host, and that the port is one for TLS"
        )
    return (
        f"cannot reach Kafka at {servers}: {error}; check kafka.bootstrap_servers, "
        "that the broker is running, and security.protocol in kafka.options"
    )
