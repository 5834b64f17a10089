"""What was resumed: metrics, the doctor, the page, `stats` and lists tell its state and its age from one question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import write_deltalake

from commitlake.config import from_mapping
from commitlake.coordinator.metrics.collect import MetricNames, of_tables
from commitlake.protocol.clock import now_ms
from commitlake.protocol.states import Kind
from commitlake.reading.questions import overview, transactions
from commitlake.reading.questions.tables import Tables, opened
from commitlake.reading.questions.transactions import Wanted
from commitlake.tools import doctor
from commitlake.tools.report import figures

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
