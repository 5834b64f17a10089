"""Fixtures that start real things once per session: Spark with Delta and Kafka jars, and a Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commitlake.kafka.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two threads, tuned for small data."""
    from commitlake.spark import session

    built = session.build(master="local[2]", app_name="commitlake-tests", short_lived=True)
    yield built
    built.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A real Kafka broker; tests that share it tell themselves apart by `kafka.topic_prefix`."""
    from commitlake.kafka.embedded import EmbeddedBroker

    with EmbeddedBroker(tmp_path_factory.mktemp("kafka")) as running:
        yield running
