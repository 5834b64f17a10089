"""Fixtures that start real things once per session: Spark with Delta and Kafka jars, and a Kafka broker."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tests.support  # noqa: F401 -- sets what all JVMs of this process start with
from tests.support.core_seconds import CoreSeconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.support.lake import Lake

    from commitlake.kafka.embedded import EmbeddedBroker

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CoreSeconds())


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start nothing are in the short run; of the others those that say so."""
    for item in items:
        starts_nothing = item.path.is_relative_to(HERE / "unit") or item.path.is_relative_to(HERE / "property")
        if starts_nothing and not item.get_closest_marker("long") and not item.get_closest_marker("soak"):
            item.add_marker("short")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A worker sends its report as UTF-8, and one test logs what is none."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two threads, tuned for small data, with Spark's functions for Avro."""
    from commitlake import config
    from commitlake.spark import session

    conf = config.from_mapping({"topics.schemas": {"any": {"format": "avro", "schema": "{}"}}})
    built = session.build(conf, master="local[2]", app_name="commitlake-tests", short_lived=True)
    yield built
    built.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A real Kafka broker; tests that share it are kept apart by `kafka.topic_prefix`."""
    from commitlake.kafka.embedded import EmbeddedBroker

    with EmbeddedBroker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of Kafka topics that no other test has."""
    name = f"{request.path.stem}-{request.node.name}"
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-") + "."


@pytest.fixture
def lake(broker: EmbeddedBroker, prefix: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A namespace of the test's own, with timings by which nothing falls due meanwhile, or as `mark.lake` says."""
    from tests.support.lake import Lake

    marker = request.node.get_closest_marker("lake")
    with Lake(broker.bootstrap_servers, prefix, tmp_path, **(marker.args[0] if marker else {})) as opened:
        yield opened
