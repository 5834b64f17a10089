"""A real coordinator with short timings, in this process, shared by the tests that only send and read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.support.lake import Lake
    from tests.support.namespace import Namespace

    from commitlake.coordinator.coordinator import Coordinator
    from commitlake.kafka.embedded import EmbeddedBroker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the shared coordinator comes last: from its start on it takes a part of two cores from all others."""
    items.sort(key=lambda item: "coordinator" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def coordinator(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Coordinator]:
    """Checks after 1 s, twice, 3 s apart; an op waits 3 s for its half message."""
    import commitlake

    place = tmp_path_factory.mktemp("shared-coordinator")
    conf: dict[str, object] = {
        "warehouse": str(place / "warehouse"),
        "checkpoints": str(place / "checkpoints"),
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, "topic_prefix": "shared.", "queues": 2},
        "trigger_interval": "500ms",
        "transaction": {"timeout": "1s", "check_interval": "3s", "check_max": 2, "op_park_time": "3s"},
    }
    with commitlake.start(spark, conf) as running:
        yield running


@pytest.fixture(scope="module")
def delta_log_lake(
    spark: SparkSession,
    broker: EmbeddedBroker,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lake]:
    """A lake with a coordinator, which asks the logs of Delta tables about the transactions of the group `nightly`."""
    from tests.support.lake import Lake

    import commitlake

    place, prefix = tmp_path_factory.mktemp("delta-log"), f"{request.path.stem}."
    rule = {"nightly": {"table": "delta-log", "every": "1s", "places": [str(tmp_path_factory.getbasetemp())]}}
    changes = {"transaction.timeout": "1s", "transaction.check_interval": "1s", "checks": rule}
    with Lake(broker.bootstrap_servers, prefix, place, **changes) as lake, commitlake.start(spark, lake.settings):
        yield lake


@pytest.fixture
def kafka(broker: EmbeddedBroker) -> Namespace:
    """Empty topics with a coordinator's settings, and nobody who coordinates."""
    from tests.support.namespace import published

    return published(broker)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test of the module has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
