"""Topics of a real coordinator as Iceberg tables: its files and Spark's, columns for bodies, compaction, VACUUM."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install -e '.[iceberg]' -c constraints.txt")

from tests.support.as_iceberg import AsIceberg

FIRST = "id BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, who STRUCT<name: STRING, tags: ARRAY<STRING>>"
BODY = {"id": 17, "amount": "12.50", "at": "2026-11-29T05:00:00Z", "who": {"name": "ann", "tags": ["a"], "age": 7}}


def schema(text: str) -> dict[str, object]:
    return {"topics_schemas": {"orders": {"format": "json", "schema": text}}}


def test_what_a_coordinator_shows_is_read_as_iceberg(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = AsIceberg(lake.warehouse, lake.root)

    def show(*names: str, **changes: object) -> None:
        for name in names:
            lake.op("COMMIT", name, lake.half(name, int(name[-1]) % 2, keys=name, body=json.dumps(BODY).encode()))
            lake.message(f"{name}-normal", topic="orders", body=b"{?}")
        lake.run(spark, **changes)
        readers.run()
        assert readers.rows() == readers.delta_rows()
        assert readers.files() == readers.delta_files()

    show("a0", "a1")
    show("b0", "b1", **schema(FIRST))
    values = {row["keys"]: row["value"] for row in readers.rows() if row["keys"]}
    assert values["a0"] is None and values["b1"]["who"] == {"name": "ann", "tags": ["a"]}
    monkeypatch.setattr("commitlake.tables.small_files.MOST_ROWS", 0)  # from here on by jobs of Spark
    show("c0", **schema(FIRST.replace("<name", "<age: INT, name")))
    assert {row["keys"]: row["value"] for row in readers.rows()}["c0"]["who"]["age"] == 7
    place = f"{lake.warehouse}/topics/orders"
    spark.sql(f"OPTIMIZE delta.`{place}`")
    readers.run()
    assert readers.rows() == readers.delta_rows()
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{place}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert readers.rows() == readers.delta_rows()
