"""A topic table that most tests of consumers read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.topic_table import message, write


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """40 messages in four queues."""
    place = tmp_path / "warehouse"
    write(place, "orders", [message(n, batch=0, queue=n % 4) for n in range(40)])
    return place
