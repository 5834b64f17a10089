"""What coordination reads of the tables."""

from __future__ import annotations

from pyspark.sql import SparkSession

from commitlake.coordinator.coordination.input_rows import op_rows
from commitlake.spark.frames import of_rows
from commitlake.tables.schemas import TABLES


def an_op(check_id: str, listed: int) -> dict[str, object]:
    places = [{"queue": 0, "offset": at} for at in range(5, 5 + listed)]
    return {"queue": 1, "op_offset": 3, "decision": "COMMIT", "half_messages": places, "check_id": check_id}


def test_each_row_of_an_op_has_the_numbers_of_the_check_that_it_answers(spark: SparkSession) -> None:
    of_another, none = an_op("0-6-7-2", 1), an_op("0-5-seven-2", 1)
    ops = of_rows(spark, [an_op("0-5-7-2", 3), of_another, none], TABLES["op"].schema)
    found = [(row["part_offset"], row["round"], row["checks"]) for row in op_rows(ops).collect()]
    assert found == [(-1, 7, 2), (6, 7, 2), (7, 7, 2), (-1, -2, -2), (-1, -2, 2)]


def test_a_check_id_is_read_once_for_an_op_and_not_for_each_half_message(spark: SparkSession) -> None:
    """It may have a megabyte, and an op may list 1 000 half messages."""
    ops = of_rows(spark, [an_op("0-5-7-2", 3)], TABLES["op"].schema).repartition(1)  # else it is worked out as a plan
    plan = op_rows(ops)._jdf.queryExecution().optimizedPlan().toString()
    above, below = plan.split("Generate ")
    assert ("check_id" in above, "check_id" in below) == (False, True), plan
