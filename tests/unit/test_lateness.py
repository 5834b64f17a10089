"""What commands, metrics and groups are told of times: lateness, the age of what was resumed, rows that are gone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.topic_table import half, message, write, written

from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.missed import missed
from commitlake.config import from_mapping
from commitlake.coordinator.metrics.collect import MetricNames, of_tables
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS, HOUR_MS
from commitlake.protocol.states import Kind
from commitlake.reading.questions import overview, transactions
from commitlake.reading.questions.overview import lateness
from commitlake.reading.questions.tables import Tables, opened
from commitlake.reading.questions.transactions import Wanted
from commitlake.tables import TABLES
from commitlake.tools import doctor
from commitlake.tools.cli import output, questions
from commitlake.tools.findings import Diagnosis
from commitlake.tools.report import figures

BEGUN = now_ms() - 600_000
"""When the one batch began; its rows could be read 20 s later."""


def at(seconds: float) -> int:
    """A time that many seconds after the begin of the batch, us since epoch."""
    return (BEGUN + int(seconds * 1_000)) * 1_000


def ended(number: int, op: int, due: int | None, duplicate: str | None, stored: int) -> dict[str, Any]:
    return {
        **{"queue": 0, "half_offset": number, "op_queue": 0, "op_offset": op, "round": 0, "checks": 0, "batch_id": 4},
        **{"state": "COMMITTED", "reason": "DIRECT", "topic": "orders", "producer_group": "g", "transaction_id": "t"},
        **{"message_id": "m", "deliver_at": due, "duplicate_of": duplicate, "stored_at": stored, "resolved_at": at(0)},
    }


def delivered(source: str, offset: int, due: int) -> dict[str, Any]:
    place = {"topic": "delays", "queue": 0, "source": source, "queue_offset": offset}
    return {**place, "state": "DELIVERED", "batch_id": 4, "deliver_at": due, "resolved_at": at(0)}


ROWS: dict[str, list[dict[str, Any]]] = {
    "batches": [{"batch_id": 4, "completed_at": at(20)}],
    "op": [
        {"queue": 0, "op_offset": offset, "admin": admin, "stored_at": at(-2)}
        for offset, admin in ((5, False), (5, True), (6, False))
    ],
    # Committed at once; with an op that came first; with a delay; and a duplicate, which is not shown.
    "transactions": [
        ended(1, 5, None, None, at(-9)),
        ended(2, 6, None, None, at(-1)) | {"checks": 1},
        ended(3, 5, at(-7), None, at(-9)),
        ended(4, 5, None, "half-0-1", at(-9)),
    ],
    "delayed": [{"queue": 0, "queue_offset": 8, "stored_at": at(-3)}],
    # Of a half message that was due 7 s before; of a message whose due time had passed long before it was sent.
    "deliveries": [delivered("half", 3, at(-7)), delivered("messages", 8, 0)],
    "destinations": [{"topic": "orders"}],
}
LATE = [
    {"topic": "delays", "kind": "DELAYED", "messages": 2, "p50_s": 23.0, "p99_s": 27.0},
    {"topic": "orders", "kind": "NORMAL", "messages": 1, "p50_s": 2.0, "p99_s": 2.0},
    {"topic": "orders", "kind": "TRANSACTION", "messages": 2, "p50_s": 21.0, "p99_s": 22.0},
]


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    for name in TABLES:
        written(tmp_path, name, *ROWS.get(name, []))
    shown = {"stored_at": at(-1), "visible_at": at(1)}
    write(tmp_path, "orders", [message(number, batch=batch, **shown) for number, batch in ((1, None), (2, 4))])
    return str(tmp_path)


def test_it_counts_from_what_came_last_to_the_time_at_which_the_batch_could_be_read(warehouse: str) -> None:
    with opened(warehouse) as tables:
        assert lateness(tables, 0, now_ms()).to_pylist() == LATE
        assert lateness(tables, 0, now_ms() + DAY_MS).num_rows == 0, "the last day only"


def test_stats_doctor_and_page_tell_it(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(warehouse) as tables:
        rows: list[Any] = overview.stats(tables, BEGUN - HOUR_MS, now_ms()).to_pylist()
        names = ("topic", "reason", "messages", "p50_s", "p99_s")
        found = [tuple(row[name] for name in names) for row in rows if row["state"] == "VISIBLE"]
        assert found == [tuple(row.values()) for row in LATE]
        page = figures.read(tables, BEGUN - HOUR_MS, now_ms())
        assert page.late == sorted(LATE, key=lambda row: -float(str(row["p99_s"])))
        assert [row["p99_s"] for row in page.slowest] == [29.0]
        for latency, took_s in ((page.at_once, 29.0), (page.checked, 21.0)):
            assert {value for each in latency.values() for value in each} == {took_s, None}
        config = from_mapping({"warehouse": warehouse})
        told = "23.0 s (p50), 27.0 s (p99) in the last hour in the slowest topic, delays"
        assert doctor._late(tables, config) == Diagnosis("late", True, told)
        monkeypatch.setattr(doctor, "_MOST_LATE_S", 26)
        assert doctor._late(tables, config).detail == f"{told}; `commitlake stats --since 1h` tells all"
    asked = questions.ask(config, lambda tables: overview.stats(tables, now_ms() - HOUR_MS, now_ms()), 9, as_json=True)
    assert asked == output.FOUND


WEEK_MS, MINUTE_MS = 7 * 86_400_000, 60_000


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """A warehouse whose one transaction is a week old; a RESUME reopened it twice, a minute ago for the last time."""
    now = now_ms()
    again = {"queue": 0, "offset": 7, "kind": int(Kind.HALF), "part_queue": -1, "part_offset": -1}
    rows = {
        "half": [half(7, "", stored_at=(now - WEEK_MS) * 1_000)],
        "reentries": [{**again, "round": n, "since": now - ago} for n, ago in ((1, WEEK_MS // 2), (2, MINUTE_MS))],
    }
    for name in TABLES:
        written(tmp_path, name, *rows.get(name, []))
    return tmp_path


def test_a_resumed_transaction_is_as_old_as_its_newest_resume(resumed: Path) -> None:
    with opened(str(resumed)) as tables:
        (row,) = overview.pending(tables, now_ms()).to_pylist()
    assert row["topic"] == "orders" and 60 <= row["oldest_s"] < 120 and row["youngest_s"] == row["oldest_s"]


def found_for(tables: Tables, older_than_ms: int) -> list[Any]:
    wanted = Wanted(("PENDING",), older_than_ms=older_than_ms)
    rows: list[Any] = transactions.found(tables, wanted, now_ms()).to_pylist()
    return rows


def test_everybody_tells_the_same_age(resumed: Path) -> None:
    config, now = from_mapping({"warehouse": str(resumed), "transaction": {"timeout": "1h"}}), now_ms()
    with opened(str(resumed)) as tables:
        found = doctor._pending(tables, config)
        assert found.is_well and found.detail.startswith("1 transaction, the oldest 6")
        samples = {each.name: each.samples for each in of_tables(tables, MetricNames())}
        assert 60 <= samples["commitlake_oldest_pending_seconds"][0].value < 120
        assert samples["commitlake_pending"][0].value == 1
        page = figures.read(tables, now - WEEK_MS * 2, now)
        assert page.ages == [0, 1, 0, 0, 0] and 59 <= page.oldest[0]["age_s"] < 120
        assert found_for(tables, 2 * MINUTE_MS) == []
        (row,) = found_for(tables, MINUTE_MS // 2)
        assert 59_000 <= row["age_ms"] < 120_000
        (row,) = overview.stats(tables, now - WEEK_MS * 2, now).to_pylist()
        assert 59 <= row["p50_s"] == row["p99_s"] < 120


def test_a_half_message_counts_once_by_its_newest_round(resumed: Path) -> None:
    """Offset 7 was discarded twice and is pending again, 8 was discarded and committed then, 9 is discarded."""
    ends = [(7, 0, "DISCARDED"), (7, 1, "DISCARDED"), (8, 0, "DISCARDED"), (8, 1, "COMMITTED"), (9, 0, "DISCARDED")]
    times = dict.fromkeys(("stored_at", "resolved_at"), now_ms() * 1_000)
    own = {"queue": 0, "topic": "orders", "reason": "x", "producer_group": "shop", "checks": 0, **times}
    rows = [{**own, "half_offset": place, "round": number, "state": state} for place, number, state in ends]
    written(resumed, "transactions", *rows)
    config, now = from_mapping({"warehouse": str(resumed)}), now_ms()
    with opened(str(resumed)) as tables:
        assert doctor._discards(tables, config).detail.startswith("1 half message in the last day")
        page = figures.read(tables, now - MINUTE_MS, now)
        assert {state: page.total(state) for state in figures.STATES} == {
            "COMMITTED": 1, "ROLLED_BACK": 0, "DISCARDED": 1,
        }  # fmt: skip
        stats = {row["state"]: row["messages"] for row in overview.stats(tables, now - MINUTE_MS, now).to_pylist()}
        assert stats == {"COMMITTED": 1, "DISCARDED": 1, "PENDING": 1}


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
