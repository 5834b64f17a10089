"""What tells that a log has lost its end: the answer of its leader of now, and of no other broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from tests.support.polling import wait_for

from commitlake import config
from commitlake.config import Config
from commitlake.errors import KafkaError
from commitlake.kafka import log_ends, topics
from commitlake.kafka.admin_client import connect
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.log_end_watcher import LogEndWatcher
from commitlake.kafka.log_ends import LogEnd, LogEnds, cuts

NOW = LogEnd(9, 5)
"""Of a leader that this broker has never heard of: it has epoch 0 itself."""


@pytest.fixture
def configured(broker: EmbeddedBroker, prefix: str) -> Config:
    found = config.from_mapping({"kafka.bootstrap_servers": broker.bootstrap_servers, "kafka.topic_prefix": prefix})
    topics.ensure_topics(found)
    wait_for(lambda: leads(found))
    return found


def leads(found: Config) -> bool:
    """Whether the broker leads the new topics; it says for a moment that it does not."""
    with suppress(KafkaError), connect(found) as opened:
        log_ends._kept(opened, found, {("half", 0): (LogEnd(0, 0), LogEnd(0, 0))})
        return True
    return False


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    opened = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield opened
    opened.close()


def test_the_same_leader_has_lost_nothing(client: KafkaAdminClient, configured: Config) -> None:
    ends = topics.log_ends(client, configured)
    assert cuts(client, configured, ends, ends) == {}
    assert {*ends.values()} == {LogEnd(0, 0)}


def test_a_broker_that_leads_no_more_says_nothing_of_an_end(configured: Config) -> None:
    """Deadlines would pass: what a COMMIT is in would look as if it had landed."""
    told: list[LogEnds] = []
    held = LogEndWatcher(configured, {("half", 0): NOW}, told.append)
    with pytest.raises(KafkaError, match="half-0"):
        held.ends()
    assert told == []


def test_a_broker_with_earlier_epochs_is_named_and_says_nothing_of_a_cut(
    client: KafkaAdminClient, configured: Config
) -> None:
    """It was restored, or is a leader of before."""
    now = topics.log_ends(client, configured)
    assert cuts(client, configured, {("half", 0): NOW}, now) == {}
    assert log_ends.deposed({("half", 0): NOW, ("half", 1): LogEnd(9, 0)}, now) == [("half", 0)]


def test_a_log_without_a_leader_counts_not_as_whole(client: KafkaAdminClient, configured: Config) -> None:
    with pytest.raises(kafka_errors.LeaderNotAvailableError, match="77"):
        cuts(client, configured, {("half", 77): LogEnd(9, 0)}, {("half", 77): NOW})


def test_a_leader_of_before_may_not_answer_for_the_one_of_now(client: KafkaAdminClient, configured: Config) -> None:
    """Cut off from the others it has all that it had, and knows of no other leader."""
    with pytest.raises(kafka_errors.UnknownLeaderEpochError):
        cuts(client, configured, {("half", 0): LogEnd(9, 0)}, {("half", 0): NOW})
