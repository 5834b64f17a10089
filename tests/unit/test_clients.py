"""Options of Kafka's clients, which of their errors are refusals, and ids of embedded brokers."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import errors as kafka_errors

from commitlake import config
from commitlake.errors import ConfigError
from commitlake.kafka import clients, embedded
from commitlake.kafka.admin_client import explain
from commitlake.kafka.refusals import Client, is_refusal

JAAS = r'org.apache.kafka.common.security.scram.ScramLoginModule required username="app" password="a\"b;c";'
SCRAM = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_jaas_config": JAAS,
    "ssl_truststore_type": "PEM",
    "ssl_endpoint_identification_algorithm": "",
}


def kafka(**options: str) -> config.KafkaConfig:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return config.from_mapping({"kafka": {"bootstrap_servers": "a:1,b:2", "options": named}}).kafka


def test_spark_gets_every_option_as_it_is() -> None:
    given = kafka(security_protocol="SSL", some_new_option="x")
    assert clients.spark_options(given) == {
        "kafka.security.protocol": "SSL",
        "kafka.some.new.option": "x",
        "kafka.bootstrap.servers": "a:1,b:2",
    }


def test_spark_does_not_wait_for_more_at_the_end_of_a_log() -> None:
    limits = clients.spark_source_limits(config.from_mapping({"kafka": {"bootstrap_servers": "a:1"}}))
    assert limits["kafka.fetch.max.wait.ms"] == "1"


def test_scram_and_pem_stores_reach_the_python_clients(tmp_path: Path) -> None:
    ca, me = tmp_path / "ca.pem", tmp_path / "me.pem"
    ca.touch()
    me.touch()
    own = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(me), "ssl_key_password": "p"}
    given = kafka(**SCRAM, **own, ssl_truststore_location=str(ca), request_timeout_ms="5000")
    assert clients.python_options(given) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "kafka_client": Client,
        "reconnect_backoff_max_ms": 1_000,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "app",
        "sasl_plain_password": 'a"b;c',
        "ssl_cafile": str(ca),
        "ssl_certfile": str(me),
        "ssl_keyfile": str(me),
        "ssl_password": "p",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ssl_truststore_location": "/x.jks"}, "allowed is PEM"),
        ({"ssl_truststore_type": "PEM", "ssl_truststore_location": "/no.pem"}, "cannot read /no.pem: No such file"),
        ({"ssl_truststore_certificates": "-----BEGIN"}, "PEM files only"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl.jaas.config"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "NTLM"}, "allowed mechanisms"),
        ({"request_timeout_ms": "soon"}, "a whole number"),
        ({"security_protocl": "SSL"}, "kafka.options.security.protocl is not allowed; did you mean security.protocol?"),
        ({"sasl_mechanisms": "PLAIN"}, "did you mean sasl.mechanism?"),
        ({"ssl_truststore_locaton": "/x.pem"}, "did you mean ssl.truststore.location?"),
    ],
)
def test_an_option_that_python_cannot_honour_is_an_error(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        clients.python_options(kafka(**options))
    assert expected in str(caught.value)


def test_an_option_of_java_only_is_left_out() -> None:
    assert clients.python_options(kafka(linger_ms="5", some_new_option="x")) == clients.python_options(kafka())


def test_the_error_of_a_broken_jaas_config_hides_the_password() -> None:
    broken = kafka(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_jaas_config='x required username=u passwort="hunter2"',
    )
    with pytest.raises(ConfigError, match="username and password") as caught:
        clients.python_options(broken)
    assert "hunter2" not in str(caught.value)


def test_the_largest_record_fits_kafkas_request_limit() -> None:
    largest = config.from_mapping({"max_message_size": "15MiB"})
    assert clients.max_record_bytes(largest) < 100 * 1024 * 1024
    assert int(clients.spark_sink_limits()["kafka.max.request.size"]) == clients.max_record_bytes(largest)


def test_values_in_single_quotes_are_read_from_jaas() -> None:
    jaas = "x.PlainLoginModule required username='a user' password='it\\'s \"so\"';"
    found = clients.python_options(
        kafka(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=jaas)
    )
    assert (found["sasl_plain_username"], found["sasl_plain_password"]) == ("a user", 'it\'s "so"')


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "AWS_MSK_IAM"])
def test_mechanisms_with_tokens_need_no_jaas(mechanism: str) -> None:
    found = clients.python_options(kafka(security_protocol="SASL_SSL", sasl_mechanism=mechanism))
    assert found["sasl_mechanism"] == mechanism


def test_options_go_to_librdkafka_under_its_names(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    given = kafka(**SCRAM, ssl_truststore_location=str(ca), reconnect_backoff_ms="70")
    found = clients.confluent_options(given)
    assert found["bootstrap.servers"] == given.bootstrap_servers
    assert (found["sasl.username"], found["sasl.password"]) == ("app", 'a"b;c')
    assert (found["ssl.ca.location"], found["ssl.endpoint.identification.algorithm"]) == (str(ca), "none")
    assert (found["reconnect.backoff.ms"], found["security.protocol"]) == (70, "SASL_SSL")
    with pytest.raises(KafkaException, match=r"ssl\.ca\.location"):  # an empty file; an unknown name would come first
        Producer(found)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"])
def test_a_login_that_librdkafka_gets_no_ticket_or_token_for_is_refused(mechanism: str) -> None:
    given = kafka(security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    with pytest.raises(ConfigError, match="needs engine='kafka-python'"):
        clients.confluent_options(given)
    clients.confluent_options(kafka(security_protocol="PLAINTEXT", sasl_mechanism=mechanism))


def test_a_login_without_a_mechanism_is_kerberos_as_in_java() -> None:
    given = kafka(security_protocol="SASL_PLAINTEXT")
    assert clients.python_options(given)["sasl_mechanism"] == "GSSAPI"
    with pytest.raises(ConfigError, match="GSSAPI needs engine='kafka-python'"):
        clients.confluent_options(given)


def test_the_longest_pause_between_tries_to_connect_is_never_below_the_first() -> None:
    assert clients.python_options(kafka(reconnect_backoff_ms="2000"))["reconnect_backoff_max_ms"] == 2_000
    both = kafka(reconnect_backoff_ms="2000", reconnect_backoff_max_ms="3000")
    assert clients.python_options(both)["reconnect_backoff_max_ms"] == 3_000


KAFKA = config.from_mapping(
    {
        "kafka": {
            "bootstrap_servers": "a:1",
            "options": {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'x required username="app" password="hunter2";',
            },
        }
    }
).kafka
INIT = "Unexpected error in InitProducerIdResponse: [Error 31] ClusterAuthorizationFailedError"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            kafka_errors.TopicAuthorizationFailedError("commitlake.half"),
            "the user app access.*commitlake.half.*Kafka ACLs",
        ),
        (kafka_errors.GroupAuthorizationFailedError("commitlake.check.g"), "the user app access.*check.g.*Kafka ACLs"),
        (kafka_errors.KafkaError(INIT), "the user app access.*Kafka ACLs"),
        (kafka_errors.SaslAuthenticationFailedError("no"), "refuses this client.*sasl.jaas.config"),
        (
            kafka_errors.KafkaConnectionError("Handshake failed: [SSL: X] y"),
            "no TLS with Kafka.*ssl.truststore.location",
        ),
    ],
)
def test_a_refusal_is_explained_without_the_password(error: Exception, expected: str) -> None:
    assert is_refusal(error)
    text = explain(KAFKA, error)
    assert re.search(expected, text)
    assert "hunter2" not in text


@pytest.mark.parametrize("error", [kafka_errors.KafkaTimeoutError("late"), ConnectionRefusedError(111, "refused")])
def test_a_transient_error_is_no_refusal(error: Exception) -> None:
    assert not is_refusal(error)
    assert "kafka.bootstrap_servers" in explain(KAFKA, error)


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    ids = [embedded._new_id() for _ in range(2_000)]  # drawn only once, 31 of them would begin with "-"
    assert not [id_ for id_ in ids if id_.startswith("-")]
    assert {len(base64.urlsafe_b64decode(id_ + "==")) for id_ in ids} == {16}
