"""Records at offsets that were used before: a log has lost its end and grows a second time.

An offset names one message for ever, also in the tables. So these records change nothing, and each is in `rejected`.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.landing import classify, positions
from commitlake.coordinator.landing.positions import LandingPosition, PartialLanding
from commitlake.protocol.states import OFFSET_USED_BEFORE
from commitlake.spark.frames import checkpoint_now, sized
from commitlake.tables import Warehouse, topic_table

_RECORD = ["source", "partition", "offset", "detail"]
_LANDED = ["source", "partition", "offset", "stored_at"]


class UsedOffsets:
    """The offsets that a run reads a second time."""

    def __init__(self, warehouse: Warehouse, begun: LandingPosition) -> None:
        self._used = _are_used(begun)
        most = sum(begun.next(*place) - low for place, low in begun.again.items())  # hours of records, maybe
        self._told = sized(checkpoint_now(_told(warehouse).where(self._used)), most)
        self._landed = sized(_landed(warehouse, self._used), most)

    def refuse(self, classified: DataFrame) -> DataFrame:
        """Classified records, with those at used offsets rejected, whatever else they are.

        Records that are in `rejected` already are left out: a landing that was cut short may have written some. After
        an earlier cut another record may have stood at the same offset. So `detail`, with the append time, identifies
        the record. Records that have landed are left out by their append time, too: a coordinator that ran meanwhile
        went on at the old end.
        """
        others = classified.join(self._landed, _LANDED, "left_anti")
        refused = classify.rejecting(others, self._used, OFFSET_USED_BEFORE, _detail())
        return refused.join(self._told, _RECORD, "left_anti")


def drop_already_landed(classified: DataFrame, uncommitted: PartialLanding) -> DataFrame:
    """Classified records without those that a cut-short landing has written; others at their offsets are rejected.

    Others come when the log has lost its end since, above the position: the position alone does not show such a loss.
    """
    place = ["source", "partition", "offset"]
    known = F.broadcast(uncommitted.coordinates)
    written = known.withColumnsRenamed({name: f"written_{name}" for name in place})
    here = " AND ".join(f"{name} = written_{name}" for name in place)
    is_same = f"(appended_at = stored_at OR content = {positions.CONTENT_HASH})"
    others = classified.join(written, F.expr(f"{here} AND {is_same}"), "left_anti")
    used = known.select(*place).distinct().withColumn("is_used", F.lit(True))
    marked = others.join(F.broadcast(used), place, "left")
    return classify.rejecting(marked, F.col("is_used").isNotNull(), OFFSET_USED_BEFORE, _detail()).drop("is_used")


def _are_used(begun: LandingPosition) -> Column:
    """Whether a record's offset lies between the next one to read and the next one to land."""
    each = [
        f"(source = '{source}' AND partition = {number} AND offset >= {low} AND offset < {begun.next(source, number)})"
        for (source, number), low in begun.again.items()
    ]
    return F.expr(" OR ".join(each) or "false")


def _told(warehouse: Warehouse) -> DataFrame:
    rows = warehouse.read("rejected").where(F.col("reason") == OFFSET_USED_BEFORE)
    return rows.withColumnsRenamed({"kafka_partition": "partition", "kafka_offset": "offset"}).select(*_RECORD)


def _landed(warehouse: Warehouse, used: Column) -> DataFrame:
    tables = ["half", "op", "delayed", *map(topic_table, warehouse.topics())]
    found = []
    for group in positions.in_groups(tables):
        each = [positions.coordinates(warehouse, table, "stored_at") for table in group]
        found.append(checkpoint_now(reduce(DataFrame.unionAll, each).where(used).distinct()))
    return reduce(DataFrame.unionAll, found)


def _detail() -> Column:
    """The text for the user: a function of the record alone, since `refuse` compares it."""
    what = (
        "the end of this Kafka log was lost, and this record got an offset that names another one of before; "
        "it changed nothing: send it again. Appended at "
    )
    return F.concat(F.lit(what), F.unix_millis("stored_at").cast("string"), F.lit(" ms since epoch"))
