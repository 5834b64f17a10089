"""`kafka.options` (the Java client's names) as options of the two Kafka clients in use: Spark's, and kafka-python's."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from commitlake.config import Config, KafkaConfig
from commitlake.config.values import LARGEST_MESSAGE
from commitlake.errors import ArgumentError, ConfigError, SetupError
from commitlake.kafka import refusals
from commitlake.protocol.topic_names import MAX_LENGTH
from commitlake.spark import preflight

# Room for headers, HALF_MESSAGES of a check (1 000 pairs are 30 KB) and the record's own framing.
_RECORD_OVERHEAD = 256 * 1024

_RENAMED = {
    "ssl.key.password": "ssl_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
# Options that every client of kafka-python has under the same name, dots written as underscores.
_COMMON: dict[str, Callable[[str], Any]] = {
    "security.protocol": str,
    "sasl.mechanism": str,
    "client.id": str,
    "client.dns.lookup": str,
    "request.timeout.ms": int,
    "connections.max.idle.ms": int,
    "metadata.max.age.ms": int,
    "retry.backoff.ms": int,
    "reconnect.backoff.ms": int,
    "reconnect.backoff.max.ms": int,
}
# Options of consumers in a group only: how soon another instance takes over the partitions of a dead one.
_GROUP = {"session.timeout.ms": int, "heartbeat.interval.ms": int, "max.poll.interval.ms": int}
# All other options of Java's clients, as of Kafka 4.1: Spark passes them on.
_JAVA = """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size
bootstrap.controllers bootstrap.servers buffer.memory check.crcs client.rack compression.gzip.level
compression.lz4.level compression.type compression.zstd.level config.providers connections.max.idle.ms
default.api.timeout.ms delivery.timeout.ms enable.auto.commit enable.idempotence enable.metrics.push
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor interceptor.classes isolation.level key.deserializer key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.records max.request.size
metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys receive.buffer.bytes retries retry.backoff.max.ms sasl.client.callback.handler.class
sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url security.providers send.buffer.bytes
share.acknowledgement.mode socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.deserializer value.serializer
"""
_NEAR = 0.9
"""How similar a mistyped name is to a known one; a new name of a later Kafka is less similar."""
_STORES = {"ssl.truststore": ("ssl_cafile",), "ssl.keystore": ("ssl_certfile", "ssl_keyfile")}
_INLINE = ("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key")
_JAAS_FIELD = re.compile(r"""\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")
_WITHOUT_JAAS = ("GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM")
"""Mechanisms with credentials from elsewhere: the ticket cache, the application's token provider, AWS's environment."""


def record_bytes(max_message_size: int) -> int:
    """Return the largest size of a record in bytes: base64 makes 4 bytes of 3, and headers and framing add to that."""
    return max_message_size + max_message_size // 3 + _RECORD_OVERHEAD


def max_record_bytes(config: Config) -> int:
    """Return the largest record in bytes: `max.message.bytes` of every topic, and the limit of every client."""
    return record_bytes(config.max_message_size)


def max_settings_bytes(config: Config) -> int:
    """Return the largest record of `settings` in bytes: it lists every destination topic, in quotes."""
    return max_record_bytes(config) + config.topics.max * (MAX_LENGTH + 3)


def spark_options(kafka: KafkaConfig) -> dict[str, str]:
    """Return the options of Spark's Kafka source and sink: address and client options, secrets resolved."""
    given = {f"kafka.{name}": value for name, value in kafka.resolved_options().items()}
    return {**given, "kafka.bootstrap.servers": kafka.bootstrap_servers}


def spark_source_limits(config: Config) -> dict[str, str]:
    """Return options of Spark's Kafka source: the largest record, the isolation level, and how long it waits for Kafka.

    They override the same ones of `kafka.options`.
    """
    largest = max_record_bytes(config)
    return {
        "kafka.isolation.level": config.kafka.isolation_level,
        "kafka.max.partition.fetch.bytes": str(max(largest, 4 << 20)),
        "kafka.fetch.max.bytes": str(max(largest, 50 << 20)),
        # After each fetch Spark asks for the log's end, on a connection on which the client has already asked for the
        # next records. At the end of a log both wait for this long, by default 500 ms, partition by partition.
        "kafka.fetch.max.wait.ms": "1",
        # A retry takes a minute. After Spark's 3 an outage of Kafka ended the coordinator; a day outlasts any outage.
        "fetchOffset.numRetries": str(24 * 60),
    }


def spark_sink_limits() -> dict[str, str]:
    """Return the sizes that let Spark's Kafka sink write the largest record, and `acks` for a durable write.

    The sizes are the largest of any configuration: a message that landed before `max_message_size` was lowered is still
    checked.
    """
    largest = record_bytes(LARGEST_MESSAGE)
    return {
        "kafka.acks": "all",
        "kafka.max.request.size": str(largest),
        "kafka.buffer.memory": str(max(2 * largest, 32 << 20)),
    }


def python_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Return the keyword arguments of a kafka-python client: address and client options, secrets resolved.

    Options that only Java's clients have are left out.

    Raises:
        ConfigError: an option without counterpart in kafka-python would, if left out, change who is trusted. Or a value
            is not allowed, or a name is mistyped.
        SetupError: this is `python -O`.
    """
    if sys.flags.optimize:
        raise SetupError(preflight.OPTIMISED)
    check_option_names(kafka.options)
    options = kafka.resolved_options()
    translated: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers.split(","),
        "kafka_client": refusals.Client,
    }
    for name, parse in _COMMON.items():
        if name in options:
            translated[name.replace(".", "_")] = _parsed(name, parse, options[name])
    if "reconnect.backoff.max.ms" not in options:
        # Java's default; kafka-python's 30 s would outlast a broker's restart.
        translated["reconnect_backoff_max_ms"] = max(1_000, translated.get("reconnect_backoff_ms", 0))
    translated |= {theirs: options[name] for name, theirs in _RENAMED.items() if name in options}
    translated |= _credentials(options) | _stores(options)
    if "ssl.endpoint.identification.algorithm" in options:
        translated["ssl_check_hostname"] = options["ssl.endpoint.identification.algorithm"] != ""
    return translated


def python_group_options(kafka: KafkaConfig) -> dict[str, int]:
    """Return the keyword arguments that a kafka-python consumer in a group takes besides `python_options`."""
    given = kafka.resolved_options()
    return {
        name.replace(".", "_"): _parsed(name, parse, given[name]) for name, parse in _GROUP.items() if name in given
    }


_CONFLUENT_NAMES = {
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "sasl_kerberos_service_name": "sasl.kerberos.service.name",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
_NOT_CONFLUENT = ("kafka_client", "ssl_check_hostname")


def confluent_options(kafka: KafkaConfig) -> dict[str, Any]:
    """Return the options of librdkafka: address and client options, secrets resolved.

    Raises:
        ConfigError: an option has no counterpart there, or a value is not allowed.
    """
    python = python_options(kafka)
    if _is_login(python.get("security_protocol")) and python.get("sasl_mechanism") in _WITHOUT_JAAS:
        msg = f"kafka.options.sasl.mechanism: {python['sasl_mechanism']} needs engine='kafka-python'"
        raise ConfigError(msg)
    named = {name: value for name, value in python.items() if name not in _NOT_CONFLUENT}
    checks_name = python.get("ssl_check_hostname", True)
    return {
        **{_CONFLUENT_NAMES.get(name, name.replace("_", ".")): value for name, value in named.items()},
        "bootstrap.servers": kafka.bootstrap_servers,
        "ssl.endpoint.identification.algorithm": "https" if checks_name else "none",
    }


def _parsed(name: str, parse: Callable[[str], Any], value: str) -> Any:
    try:
        return parse(value)
    except ValueError:
        msg = f"kafka.options.{name}: {value!r} is not allowed; allowed is a whole number"
        raise ConfigError(msg) from None


def _is_login(protocol: str | None) -> bool:
    return (protocol or "").upper().startswith("SASL")


def _credentials(options: Mapping[str, str]) -> dict[str, str]:
    if not _is_login(options.get("security.protocol")):
        return {}
    mechanism = options.get("sasl.mechanism", "GSSAPI")
    if mechanism in _WITHOUT_JAAS:
        return {"sasl_mechanism": mechanism}
    found = {name: "".join(values) for name, *values in _JAAS_FIELD.findall(options.get("sasl.jaas.config", ""))}
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512") or len(found) < 2:
        msg = (
            f"kafka.options: sasl.mechanism {mechanism} needs a sasl.jaas.config with username and password; "
            "allowed mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER and AWS_MSK_IAM"
        )
        raise ConfigError(msg)
    return {f"sasl_plain_{name}": re.sub(r"\\(.)", r"\1", value) for name, value in found.items()}


def _stores(options: Mapping[str, str]) -> dict[str, str]:
    inline = [name for name in _INLINE if name in options]
    if inline:
        msg = f"kafka.options.{inline[0]}: the Python clients read PEM files only; name one in ...store.location"
        raise ConfigError(msg)
    files: dict[str, str] = {}
    for store, arguments in _STORES.items():
        place, kind = options.get(f"{store}.location"), options.get(f"{store}.type", "JKS")
        if place and kind.upper() != "PEM":
            msg = f"kafka.options.{store}.type: {kind} is not allowed; allowed is PEM, which both Java and Python read"
            raise ConfigError(msg)
        if place:
            _check_readable(f"{store}.location", place)
            files |= dict.fromkeys(arguments, place)
    return files


def _check_readable(name: str, place: str) -> None:
    """Raises at once: OpenSSL's error names no file, and kafka-python would retry until its timeout."""
    try:
        Path(place).open("rb").close()
    except OSError as error:
        msg = (
            f"kafka.options.{name}: cannot read {place}: {error.strerror}; make the file readable, or change the option"
        )
        raise ConfigError(msg) from error


def check_option_names(options: Mapping[str, str]) -> None:
    """Reject an option whose name is a mistyped known one: no client would use it.

    All other unknown names may be options that only Java's clients have.

    Raises:
        ArgumentError: a name is mistyped; the error has the nearest known name.
    """
    known = {*_COMMON, *_GROUP, *_RENAMED, *_JAVA.split()}
    for name in options:
        if name not in known and (near := difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)):
            msg = f"kafka.options.{name} is not allowed; did you mean {near[0]}?"
            raise ArgumentError(msg)
