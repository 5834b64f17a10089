"""Which errors of Kafka's client are refusals, and what they tell the user to do."""

from __future__ import annotations

import re

import pytest
from kafka import errors as kafka_errors

from commitlake import config
from commitlake.kafka.admin_client import explain
from commitlake.kafka.refusals import is_refusal

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
