"""The history that met every rule, told once: tests read its tables, or change a copy of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession
from tests.lake import Lake
from tests.spark.story import Story

from commitlake.kafka.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def story(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    lake = Lake(broker.bootstrap_servers, "rules.", tmp_path_factory.mktemp("rules"))
    told = Story(lake, spark)
    told.tell()
    yield told
    lake.close()


@contextmanager
def copy_of(story: Story, place: Path) -> Iterator[Lake]:
    """A copy of the story's warehouse, over the same Kafka topics."""
    lake = Lake(str(story.lake.settings["kafka.bootstrap_servers"]), "rules.", place)
    copytree(story.lake.root / "warehouse", place / "warehouse")
    yield lake
    lake.close()


@pytest.fixture
def copied(story: Story, tmp_path: Path) -> Iterator[Lake]:
    with copy_of(story, tmp_path) as lake:
        yield lake
