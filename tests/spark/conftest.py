"""The history that meets every rule, played once: tests read its tables, or change a copy of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.story import Story

from commitlake.kafka.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def story(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with Lake(broker.bootstrap_servers, "rules.", tmp_path_factory.mktemp("rules")) as lake:
        played = Story(lake, spark)
        played.play()
        yield played


@pytest.fixture
def copied(story: Story, tmp_path: Path) -> Iterator[Lake]:
    with story.lake.copied(tmp_path) as lake:
        yield lake
