"""Windows against a small model: whatever files rows are in, each row comes once, and in order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.topic_table import compact, message, write

from commitlake.clients.consumer import plan as plan_module
from commitlake.clients.consumer import topic as topic_module
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.topic import Topic

KINDS = ("batch", "normal", "both", "compact", "read", "others", "restart")
STEPS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=12)


class Reader:
    """Reads windows as a consumer does, and remembers all rows."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self.cursors: dict[int, Cursor] = {}
        self.found: list[dict[str, Any]] = []
        self.topic: Topic | None = None

    def read(self, most: int = 1_000, without: int | None = None) -> None:
        """Read windows, but for those of a queue that has gone to another instance."""
        self.topic = self.topic or Topic(str(self.warehouse / "topics" / "t"))
        self.topic.refresh()
        for queue in self.topic.queues():
            self.cursors.setdefault(queue, Cursor())
        mine = {queue: cursor for queue, cursor in self.cursors.items() if queue != without}
        while most and (window := self.topic.next(mine)) is not None:
            self.found += window.rows.to_pylist()
            for queue, end in window.ends.items():
                self.cursors[queue].join(end)
            most -= 1

    def restart(self) -> None:
        """Another instance, with the cursors as they were kept."""
        self.topic = None
        self.cursors = {queue: Cursor.of_json(cursor.to_json()) for queue, cursor in self.cursors.items()}


def rows_of(step: str, number: int, batch: int, queues: int) -> list[dict[str, Any]]:
    rows = []
    for offset in range(number, number + 3):
        queue = offset % queues
        if step != "normal":
            rows.append(message(offset, batch=batch, queue=queue, source_queue=offset % 2))
        if step != "batch":
            rows.append(message(offset + 5_000, queue=queue, source_queue=offset % 2, message_id=f"n{offset}"))
    return rows


@settings(max_examples=40)
@given(
    steps=STEPS,
    queues=st.integers(1, 3),
    budget=st.sampled_from([1, 5_000, 1 << 20]),
    memory=st.sampled_from([1, 500, 1 << 20]),
)
@pytest.mark.filterwarnings("ignore")
def test_each_row_comes_once_and_in_the_order_of_the_contract(
    steps: list[str], queues: int, budget: int, memory: int
) -> None:
    with (
        TemporaryDirectory() as place,
        mock.patch.object(topic_module, "BUDGET", budget),
        mock.patch.object(topic_module, "WINDOW_BYTES", memory),
        mock.patch.object(plan_module, "WINDOW_BYTES", memory),
    ):
        warehouse = Path(place)
        write(warehouse, "t", [])
        reader = Reader(warehouse)
        expected: list[str] = []
        for number, step in enumerate(steps):
            if step == "compact":
                compact(warehouse, "t")
            elif step == "read":
                reader.read(most=2)
            elif step == "others":
                reader.read(most=1, without=0)
            elif step == "restart":
                reader.restart()
            else:
                rows = rows_of(step, number * 3, number, queues)
                write(warehouse, "t", rows)
                expected += [row["message_id"] for row in rows]
        reader.read()
    assert sorted(row["message_id"] for row in reader.found) == sorted(expected)
    parts = [reader.found]
    if "others" in steps:  # then only the order within a queue holds
        parts = [[row for row in reader.found if row["queue_id"] == queue] for queue in range(queues)]
    for part in parts:
        check_order(part)


def check_order(rows: list[dict[str, Any]]) -> None:
    for first, second in pairwise(row for row in rows if row["batch_id"] is not None):
        assert place_of(first) < place_of(second)
    for source_queue in range(2):
        mine = [row for row in rows if row["batch_id"] is None and row["source_queue"] == source_queue]
        offsets = [row["source_offset"] for row in mine]
        assert offsets == sorted(offsets)


def place_of(row: dict[str, int]) -> tuple[int, int, int]:
    return row["batch_id"], row["source_queue"], row["source_offset"]
