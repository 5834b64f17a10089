"""What a group is told of rows that `topics.retention` has deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.missed import missed

SCHEMA = pa.schema(
    [
        *(("topic", pa.string()), ("queue_id", pa.int32()), ("source_queue", pa.int32()), ("last", pa.int64())),
        ("visible_before", pa.timestamp("us", "UTC")),
    ]
)
CURSORS = {0: Cursor((5, 0, 9, 0), {2: (7, 0)}), 1: Cursor()}


def told(place: Path, *rows: tuple[Any, ...]) -> list[str]:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    columns = [dict(zip(SCHEMA.names, (*row, at), strict=True)) for row in rows]
    write_deltalake(str(place), pa.Table.from_pylist(columns, SCHEMA), mode="append")
    return sorted(map(str, missed(str(place), "orders", CURSORS, None)))


def test_a_group_has_missed_what_was_deleted_behind_its_cursors(tmp_path: Path) -> None:
    rows = [("orders", 0, None, 8), ("orders", 0, None, 6), ("orders", 0, 2, 9), ("clicks", 0, None, 99)]
    assert told(tmp_path, *rows) == [
        "queue 0, batches 5 to 8, visible before 2026-11-01 00:00:00 UTC",
        "queue 0, offsets of partition 2 7 to 9, visible before 2026-11-01 00:00:00 UTC",
    ]


def test_a_group_has_missed_nothing_that_it_has_passed_or_never_begun(tmp_path: Path) -> None:
    passed, begun_later = [("orders", 0, None, 5), ("orders", 0, 2, 7)], [("orders", 1, None, 8), ("orders", 0, 3, 9)]
    assert told(tmp_path, *passed, *begun_later, ("orders", 4, None, 8)) == []


def test_a_copy_of_the_topics_alone_tells_nothing(tmp_path: Path) -> None:
    assert [*missed(str(tmp_path / "maintenance"), "orders", CURSORS, None)] == []
    write_deltalake(str(tmp_path), pa.table({"ended_before": pa.array([1])}))
    assert [*missed(str(tmp_path), "orders", CURSORS, None)] == []
