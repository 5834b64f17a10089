"""A namespace of its own for each test, on the broker that all share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lake import Lake

from commitlake.kafka.embedded import EmbeddedBroker


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-60:].strip("-") + "."


@pytest.fixture
def lake(broker: EmbeddedBroker, prefix: str, tmp_path: Path) -> Iterator[Lake]:
    opened = Lake(broker.bootstrap_servers, prefix, tmp_path)
    yield opened
    opened.close()
