"""A group with a check topic of its own reads only that one, and goes over to it while it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.namespace import Listener, Namespace, check
from tests.support.polling import wait_for

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.topics import ensure_topics

OWN = {"kafka.check_topics": ["group"]}


@pytest.fixture
def kafka(broker: EmbeddedBroker) -> Iterator[Namespace]:
    """Empty topics with published settings."""
    namespace = Namespace(broker, **OWN)
    namespace.publish()
    yield namespace


def answered(kafka: Namespace) -> set[str]:
    return {op.transaction_id for op in kafka.answers()}


def test_an_instance_goes_to_the_topic_of_its_group_and_back_while_it_runs(kafka: Namespace) -> None:
    with kafka.producer(Listener()):
        kafka.ask(check("1"))
        wait_for(lambda: answered(kafka) == {"1"})
        kafka.publish(**OWN)
        kafka.ask(check("2"), topic="check.group")
        wait_for(lambda: answered(kafka) == {"1", "2"})
        kafka.ask(check("of all"))
        kafka.ask(check("3"), topic="check.group")
        wait_for(lambda: answered(kafka) == {"1", "2", "3"})
        assert kafka.committed() == 1, "what is for others is not even read"
        kafka.publish()
        wait_for(lambda: answered(kafka) == {"1", "2", "3", "of all"})


def test_a_group_without_a_topic_of_its_own_reads_that_of_all(kafka: Namespace) -> None:
    kafka.publish(**OWN)
    kafka.ask(check("1", "other"))
    with kafka.producer(Listener(), "other"):
        wait_for(lambda: answered(kafka) == {"1"})


def test_a_check_topic_of_a_group_is_made_like_check(kafka: Namespace) -> None:
    assert ensure_topics(kafka.config) == []
    assert len(kafka.read("check.group")) == 0
    assert ensure_topics(kafka.configured(**OWN, **{"kafka.queues": 3})) == [], "it grows with the others"
