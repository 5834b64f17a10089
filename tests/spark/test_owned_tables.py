"""What an owner does to tables with Spark, as readers without Spark see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.topic_table import message, write

import commitlake
from commitlake.errors import WarehouseError
from commitlake.reading.questions.tables import opened

SWITCH = "'delta.enableDeletionVectors' = true, 'delta.appendOnly' = false"
MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = true)"


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_rows_that_spark_deletes_by_vectors_are_seen_by_nobody(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    for batch in range(2):
        write(tmp_path, "orders", [message(10 * batch + n, batch=batch, queue=n % 2) for n in range(10)])
    table = f"delta.`{tmp_path}/topics/orders`"
    checkpoints = f"'delta.checkpointPolicy' = '{policy}', 'delta.checkpointInterval' = 1"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({SWITCH}, {checkpoints})")
    spark.sql(f"DELETE FROM {table} WHERE source_offset % 4 = 1")
    spark.sql(f"DELETE FROM {table} WHERE source_offset = 3")
    left = [f"m{number}" for number in range(20) if number % 4 != 1 and number != 3]
    assert spark.read.format("delta").load(f"{tmp_path}/topics/orders").count() == len(left)
    log = tmp_path / "topics/orders/_delta_log"
    named = {len(each.name.split(".")) for each in log.glob("[0-9]*.checkpoint.*")}
    assert named == {4 if policy == "v2" else 3}, "with a UUID: deltalake writes no such checkpoint"
    for commit in sorted(log.glob(f"{'[0-9]' * 20}.json"))[:-1]:
        commit.unlink()  # as cleaned up in time: a checkpoint stands for them
    with commitlake.consume({"warehouse": str(tmp_path)}, "orders", group="g", follow=False) as messages:
        assert [each.message_id for each in messages] == left
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT message_id FROM {tables.topic('orders')} ORDER BY batch_id, source_offset")
    assert found["message_id"].to_pylist() == left


def test_a_mapped_table_with_odd_partitions_is_read_by_its_own_names(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "business"
    spark.sql(f"CREATE TABLE delta.`{place}` (id STRING, `the state` STRING, day STRING) USING delta "
              f"PARTITIONED BY (day) {MAPPED}")  # fmt: skip
    spark.sql(f"INSERT INTO delta.`{place}` VALUES ('1', 'PAID', 'a b%'), ('2', 'NEW', 'a b%'), ('3', 'PAID', 'c=/d')")
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id = '2'")
    spark.sql(f"ALTER TABLE delta.`{place}` RENAME COLUMN `the state` TO state")
    with opened(str(tmp_path)) as tables:
        view = tables.outside(str(place), {"ID", "state", "day"})
        assert tables.rows(f"SELECT id, state, day FROM {view} ORDER BY id").to_pylist() == [
            {"id": "1", "state": "PAID", "day": "a b%"},
            {"id": "3", "state": "PAID", "day": "c=/d"},
        ]
        spark.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS (more STRUCT<amount: DOUBLE>)")
        with pytest.raises(WarehouseError, match=r"other names inside of the column more .*columnMapping"):
            tables.outside(str(place))
