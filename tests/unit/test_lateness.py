"""What commands, metrics and the page tell of times: how late messages became visible, how old is what was resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import write_deltalake

from commitlake.config import from_mapping
from commitlake.coordinator.metrics.collect import MetricNames, of_tables
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS, HOUR_MS
from commitlake.protocol.states import Kind
from commitlake.reading.questions import overview, transactions
from commitlake.reading.questions.lateness import lateness
from commitlake.reading.questions.tables import Tables, opened
from commitlake.reading.questions.transactions import Wanted
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
    assert questions.stats(from_mapping({"warehouse": warehouse}), HOUR_MS, as_json=True) == questions.FOUND


def test_the_demo_tells_the_time_from_a_commit_until_its_row_could_be_read(warehouse: str) -> None:
    assert OrderTables(Path(warehouse), "no broker is asked").median_s("orders") == 22.0


WEEK_MS, MINUTE_MS = 7 * 86_400_000, 60_000
HALF = """
SELECT 0 AS queue, 7::BIGINT AS queue_offset, 0 AS first_queue, 7::BIGINT AS first_offset, 'tx' AS transaction_id,
       'shop' AS producer_group, 'orders' AS topic, 'm' AS message_id, '' AS tags, '' AS keys,
       MAP {{'a': 'b'}} AS properties, make_timestamptz({stored} * 1000) AS stored_at
"""
OTHERS = {
    "transactions": "queue INT, half_offset BIGINT, round INT, topic VARCHAR, state VARCHAR, reason VARCHAR, "
    "producer_group VARCHAR, transaction_id VARCHAR, message_id VARCHAR, checks INT, stored_at TIMESTAMPTZ, "
    "resolved_at TIMESTAMPTZ, deliver_at TIMESTAMPTZ, op_queue INT, op_offset BIGINT, duplicate_of VARCHAR, "
    "batch_id BIGINT",
    "checks": "queue INT, half_offset BIGINT, round INT, check_no INT, repeat INT, requested_at TIMESTAMPTZ",
    "op": 'queue INT, op_offset BIGINT, "admin" BOOLEAN, check_id VARCHAR, stored_at TIMESTAMPTZ',
    "batches": "batch_id BIGINT, completed_at TIMESTAMPTZ",
    "destinations": "topic VARCHAR",
    "open_rows": 'landing_id BIGINT, kind INT, queue INT, "offset" BIGINT',
    "positions": 'landing_id BIGINT, offsets STRUCT(source VARCHAR, "partition" INT, next BIGINT)[]',
    "rejected": "reason VARCHAR, rejected_at TIMESTAMPTZ",
    "delayed": "queue INT, queue_offset BIGINT, stored_at TIMESTAMPTZ, deliver_at TIMESTAMPTZ",
    "deliveries": "source VARCHAR, queue INT, queue_offset BIGINT, topic VARCHAR, state VARCHAR, batch_id BIGINT, "
    "deliver_at TIMESTAMPTZ, resolved_at TIMESTAMPTZ",
}


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """A warehouse whose one transaction is a week old; a RESUME reopened it twice, a minute ago for the last time."""
    now = now_ms()
    rounds = f"""SELECT 0 AS queue, 7::BIGINT AS "offset", {int(Kind.HALF)} AS kind, n AS round, {now} - ago AS since,
                        -1 AS part_queue, -1::BIGINT AS part_offset
                 FROM (VALUES (1, {WEEK_MS // 2}), (2, {MINUTE_MS})) AS r(n, ago)"""
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, columns in OTHERS.items():
            db.execute(f"CREATE TABLE {name} ({columns})")
        sources = {name: f"SELECT * FROM {name}" for name in OTHERS}
        for name, sql in {"half": HALF.format(stored=now - WEEK_MS), "reentries": rounds, **sources}.items():
            write_deltalake(str(tmp_path / name), db.sql(sql).arrow())
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
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"CREATE TABLE transactions ({OTHERS['transactions']})")
        for place, round_, state in ends:
            db.execute(
                "INSERT INTO transactions VALUES (0, ?, ?, 'orders', ?, 'x', 'shop', 'tx', 'm', 0, now(), now(), NULL, "
                "NULL, NULL, NULL, NULL)",
                (place, round_, state),
            )
        write_deltalake(str(resumed / "transactions"), db.sql("FROM transactions").arrow(), mode="append")
    config, now = from_mapping({"warehouse": str(resumed)}), now_ms()
    with opened(str(resumed)) as tables:
        assert doctor._discards(tables, config).detail.startswith("1 half message in the last day")
        page = figures.read(tables, now - MINUTE_MS, now)
        assert {state: page.total(state) for state in figures.STATES} == {
            "COMMITTED": 1, "ROLLED_BACK": 0, "DISCARDED": 1,
        }  # fmt: skip
        stats = {row["state"]: row["messages"] for row in overview.stats(tables, now - MINUTE_MS, now).to_pylist()}
        assert stats == {"COMMITTED": 1, "DISCARDED": 1, "PENDING": 1}
