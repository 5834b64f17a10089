"""How old what is pending is, as metrics tell it."""

from __future__ import annotations

import duckdb

from commitlake.coordinator.metrics import collect
from commitlake.protocol.states import Kind


def test_a_resumed_transaction_is_as_old_as_its_resume() -> None:
    with duckdb.connect() as db:
        db.execute(
            "CREATE TABLE pending AS SELECT 'orders' AS topic, 0 AS queue, 7 AS queue_offset, "
            "to_timestamp(10) AS stored_at"
        )
        db.execute('CREATE TABLE reentries (queue INT, "offset" BIGINT, kind INT, round INT, since BIGINT)')
        sql = collect._PENDING.format(now=100_000)
        assert db.execute(sql).fetchall() == [("orders", 1, 90.0)]
        db.execute(
            f"INSERT INTO reentries VALUES (0, 7, {int(Kind.HALF)}, 1, 60000), (0, 7, {int(Kind.HALF)}, 2, 95000)"
        )
        assert db.execute(sql).fetchall() == [("orders", 1, 5.0)]
