"""How late messages became visible: from the op, their own append or their due time until they could be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import write_deltalake

from commitlake.config import from_mapping
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS, HOUR_MS
from commitlake.reading.questions import overview
from commitlake.reading.questions.overview import lateness
from commitlake.reading.questions.tables import opened
from commitlake.tools import doctor
from commitlake.tools.cli import questions
from commitlake.tools.demo.comparison import OrderTables
from commitlake.tools.report import figures

BEGUN = now_ms() - 600_000
"""When the one batch began; its rows could be read 20 s later."""


def at(seconds: float) -> str:
    """SQL of a time that many seconds after the begin of the batch."""
    return f"make_timestamptz({BEGUN + int(seconds * 1_000)} * 1000)"


TRANSACTION = "'COMMITTED' AS state, 'DIRECT' AS reason, 4 AS batch_id, 0 AS queue, 0 AS round, 0 AS checks"
TABLES = {
    "batches": f"SELECT 4 AS batch_id, {at(20)} AS completed_at",
    "op": f"""SELECT 0 AS queue, o AS op_offset, "admin", {at(-2)} AS stored_at, NULL::VARCHAR AS check_id
              FROM (VALUES (5, FALSE), (5, TRUE), (6, FALSE)) AS r(o, "admin")""",
    # Committed at once; with an op that came first; with a delay; and a duplicate, which is not shown.
    "transactions": f"""SELECT {TRANSACTION}, 'orders' AS topic, h AS half_offset, 0 AS op_queue, o AS op_offset, due AS
              deliver_at, duplicate AS duplicate_of, stored AS stored_at, {at(0)} AS resolved_at, 'g' AS producer_group,
              't' AS transaction_id, 'm' AS message_id
              FROM (VALUES (1, 5, NULL, NULL, {at(-9)}), (2, 6, NULL, NULL, {at(-1)}), (3, 5, {at(-7)}, NULL, {at(-9)}),
                           (4, 5, NULL, 'half-0-1', {at(-9)})) AS r(h, o, due, duplicate, stored)""",
    "delayed": f"SELECT 0 AS queue, 8 AS queue_offset, {at(-3)} AS stored_at",
    # Of a half message that was due 7 s before; of a message whose due time had passed long before it was sent.
    "deliveries": f"""SELECT 'delays' AS topic, 'DELIVERED' AS state, 4 AS batch_id, 0 AS queue, source,
              o AS queue_offset, due AS deliver_at, {at(0)} AS resolved_at
              FROM (VALUES ('half', 3, {at(-7)}), ('messages', 8, make_timestamptz(0))) AS r(source, o, due)""",
    "destinations": "SELECT 'orders' AS topic",
    "topics/orders": f"""SELECT b AS batch_id, {at(-1)} AS stored_at, {at(1)} AS visible_at
              FROM (VALUES (NULL::BIGINT), (4)) AS r(b)""",
}
NONE = {
    "half": "queue INT, queue_offset BIGINT, first_queue INT, first_offset BIGINT, transaction_id VARCHAR, "
    "topic VARCHAR, producer_group VARCHAR, message_id VARCHAR, tags VARCHAR, keys VARCHAR, "
    "properties MAP(VARCHAR, VARCHAR), "
    "stored_at TIMESTAMPTZ",
    "reentries": 'queue INT, "offset" BIGINT, kind INT, round INT, since BIGINT, part_queue INT, part_offset BIGINT',
    "checks": "queue INT, half_offset BIGINT, round INT, check_no INT, repeat INT, requested_at TIMESTAMPTZ",
    "open_rows": 'landing_id BIGINT, kind INT, queue INT, "offset" BIGINT',
    "positions": 'landing_id BIGINT, offsets STRUCT(source VARCHAR, "partition" INT, next BIGINT)[]',
    "rejected": "reason VARCHAR, rejected_at TIMESTAMPTZ",
}
LATE = [
    {"topic": "delays", "kind": "DELAYED", "messages": 2, "p50_s": 23.0, "p99_s": 27.0},
    {"topic": "orders", "kind": "NORMAL", "messages": 1, "p50_s": 2.0, "p99_s": 2.0},
    {"topic": "orders", "kind": "TRANSACTION", "messages": 2, "p50_s": 21.0, "p99_s": 22.0},
]


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, sql in TABLES.items():
            write_deltalake(f"{tmp_path}/{name}", db.sql(sql).arrow())
        for name, columns in NONE.items():
            db.execute(f"CREATE TABLE {name} ({columns})")
            write_deltalake(f"{tmp_path}/{name}", db.sql(f"FROM {name}").arrow())
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
        config = from_mapping({"warehouse": warehouse})
        told = "23.0 s (p50), 27.0 s (p99) in the last hour in the slowest topic, delays"
        assert doctor._late(tables, config) == doctor.Diagnosis("late", True, told)
        monkeypatch.setattr(doctor, "_MOST_LATE_S", 26)
        assert doctor._late(tables, config).detail == f"{told}; `commitlake stats --since 1h` tells all"
    asked = questions.ask(config, lambda tables: overview.stats(tables, now_ms() - HOUR_MS, now_ms()), 9, as_json=True)
    assert asked == questions.FOUND


def test_the_demo_tells_the_time_from_a_commit_until_its_row_could_be_read(warehouse: str) -> None:
    assert OrderTables(Path(warehouse), "no broker is asked").median_s("orders") == 22.0
