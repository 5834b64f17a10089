"""Answers to COMMIT, ROLLBACK and RESUME whose first half message was not open (contract 4.1, 4.2, 4.6, 4.8)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_rows import half_rows, op_rows
from commitlake.coordinator.coordination.unmatched.lookup import LedgerTables, is_part, near, with_first
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions, Ruling, events
from commitlake.protocol.states import Event, Kind, Refusal, Source
from commitlake.spark.frames import materialized
from commitlake.tables.columns import IS_FIRST
from commitlake.tables.rounds import newest
from commitlake.tables.spans import spans_of, within

_OP = ["op_queue", "op_offset", "admin"]
_WRONG = ("missing", "other_id", "other_group", "foreign", "orphan")
_AT_OP = (("queue", "op_queue"), ("op_offset", "op_offset"))


def resolve(batch: Events, tables: LedgerTables, timeout_ms: int) -> Resolutions:
    """Refuses what conflicts, is about nothing or names the wrong thing; reopens what a RESUME may reopen.

    Args:
        batch: the batch's events.
        tables: as they were before the batch.
        timeout_ms: age of a reopened transaction, in ms since its RESUME, at its first check.
    """
    unmatched = materialized(with_record(batch.of(Event.UNMATCHED_OP, Source.HALF), tables))
    facts = with_first(unmatched, tables).join(wrong_parts(unmatched, tables), _OP, "left")
    if not batch.count(Event.UNMATCHED_OP, kind=Kind.RESUME):  # nearly always
        judged = materialized(facts.withColumn("verdict", _decision()))
        return Resolutions(refusals(judged), once_more(judged))
    judged = facts.withColumn("verdict", F.when(F.col("kind") == int(Kind.RESUME), _resume()).otherwise(_decision()))
    judged = materialized(_meet_what_is_reopened(_accept_the_first(judged)))
    return Resolutions(refusals(judged), once_more(judged).union(_reopen(judged, tables, timeout_ms)))


def once_more(judged: DataFrame) -> DataFrame:
    """Input rows of the ops that wait on."""
    return op_rows(judged.where(F.col("verdict") == int(Ruling.AGAIN)).select("record.*"), due="0")


def refusals(judged: DataFrame) -> DataFrame:
    """REFUSED events of what was judged so."""
    refused = judged.where(F.col("verdict") > 0)
    where = {name: F.col(name) for name in ("op_queue", "op_offset", "admin", "src", "now")}
    return events(refused, event=Event.REFUSED, reason=F.col("verdict"), **where)


def with_record(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Adds the op record as `record`."""
    record = near(tables.op, unmatched, *_AT_OP)
    columns = [F.col("queue").alias("op_queue"), F.col("op_offset"), F.col("admin").cast("int").alias("admin")]
    return unmatched.join(record.select(*columns, F.struct(*record.columns).alias("record")), _OP)


def wrong_parts(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """What is wrong with the further half messages that ops list, a row for each; false or null where nothing is."""
    if unmatched.where("size(record.half_messages) > 1").isEmpty():
        return unmatched.select(*_OP, *[F.lit(None).cast("boolean").alias(name) for name in _WRONG])
    listed = unmatched.select("*", F.explode(F.slice("record.half_messages", 2, 1_000)).alias("m")).select(
        *_OP,
        "record",
        "first_queue",
        "first_offset",
        F.col("m.queue").alias("queue"),
        F.col("m.offset").alias("queue_offset"),
    )
    spans = spans_of(listed, "queue", "queue_offset")
    half = tables.half.where(within(spans, "queue", "queue_offset")).select(
        "queue",
        "queue_offset",
        F.struct("transaction_id", "producer_group", "first_queue", "first_offset").alias("part"),
    )
    orphans = tables.transactions.where(within(spans, "queue", "half_offset") & (F.col("reason") == "ORPHAN"))
    orphans = orphans.select("queue", F.col("half_offset").alias("queue_offset"))
    found = listed.join(half, ["queue", "queue_offset"], "left").join(
        orphans.withColumn("orphan", F.lit(True)), ["queue", "queue_offset"], "left"
    )
    own = F.struct("part.first_queue", "part.first_offset") == F.struct("first_queue", "first_offset")
    other_id, other_group = (
        F.col(f"part.{name}") != F.col(f"record.{name}") for name in ("transaction_id", "producer_group")
    )
    each = (F.col("part").isNull(), other_id, other_group, ~own, F.col("orphan"))
    return found.groupBy(*_OP).agg(
        *[F.max(wrong).alias(name) for name, wrong in zip(_WRONG, each, strict=True)],
    )


def _yes(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _wrong_id() -> Column:
    return _yes(F.col("record.transaction_id") != F.col("first.transaction_id")) | _yes(F.col("other_id"))


def _wrong_group() -> Column:
    group = _yes(F.col("record.producer_group") != F.col("first.producer_group")) | _yes(F.col("other_group"))
    return (F.col("admin") == 0) & group


def _is_before(resumed: Column, op_offset: Column) -> Column:
    """Whether an op came before a RESUME: an administrator's by its place in their one partition, others by time."""
    older = F.unix_millis("record.stored_at") <= resumed
    return F.when(F.col("admin") == 1, F.col("op_offset") <= op_offset).otherwise(older)


def _already() -> Column:
    """The refusal that names how the transaction ended, null where it has not, or as the op decides."""
    same = F.when(F.col("record.decision") == "COMMIT", "COMMITTED").otherwise("ROLLED_BACK")
    names = {
        "COMMITTED": Refusal.ALREADY_COMMITTED,
        "ROLLED_BACK": Refusal.ALREADY_ROLLED_BACK,
        "DISCARDED": Refusal.ALREADY_DISCARDED,
    }
    table = F.create_map(*[F.lit(item) for name, code in names.items() for item in (name, int(code))])
    ended = ~F.col("pending") & (F.col("ledger.state") != same)
    before_resume = F.col("pending") & _is_before(F.col("open_since"), F.col("open_op_offset"))
    return F.when(_yes(ended), table[F.col("ledger.state")]).when(
        _yes(before_resume) | _yes(F.col("orphan")), int(Refusal.ALREADY_DISCARDED)
    )


def _decision() -> Column:
    """The reasons in their order: id, group, how it ended; NO_HALF_MESSAGE only when something never landed."""
    missing = F.col("first").isNull() | _yes(F.col("missing"))
    return (
        F.when(_wrong_id(), int(Refusal.WRONG_TRANSACTION_ID))
        .when(_wrong_group(), int(Refusal.WRONG_PRODUCER_GROUP))
        .when(_yes(is_part()), int(Refusal.BAD_FIRST_HALF))
        .when(F.col("first").isNotNull() & _already().isNotNull(), _already())
        .when(missing, int(Refusal.NO_HALF_MESSAGE))
        .when(_yes(F.col("foreign")), int(Refusal.BAD_FIRST_HALF))
        .when(~F.col("pending"), int(Ruling.NOTHING))
        .otherwise(int(Ruling.AGAIN))
    )


def _resume() -> Column:
    """Only what is DISCARDED, and no ORPHAN, opens again."""
    orphan = _yes(F.col("ledger.reason") == "ORPHAN")
    discarded = ~F.col("pending") & (F.col("ledger.state") == "DISCARDED")
    return (
        F.when(F.col("first").isNull(), int(Refusal.NO_HALF_MESSAGE))
        .when(_wrong_id(), int(Refusal.WRONG_TRANSACTION_ID))
        .when(is_part() & ~orphan, int(Refusal.BAD_FIRST_HALF))
        .when(_yes(discarded) & ~orphan, int(Ruling.ACCEPT))
        .otherwise(int(Refusal.NOT_DISCARDED))
    )


def _accept_the_first(judged: DataFrame) -> DataFrame:
    """Of several RESUMEs of one transaction in a batch the first opens it; for the others it is open then."""
    accepted = F.col("verdict") == int(Ruling.ACCEPT)
    order = Window.partitionBy("first_queue", "first_offset", accepted).orderBy("record.stored_at", "op_offset")
    late = accepted & (F.row_number().over(order) > 1)
    return judged.withColumn("verdict", F.when(late, int(Refusal.NOT_DISCARDED)).otherwise(F.col("verdict")))


def _meet_what_is_reopened(judged: DataFrame) -> DataFrame:
    """What came after a RESUME of this batch waits for the next one, in which the transaction is open again."""
    came = F.struct(F.unix_millis("record.stored_at").alias("at"), F.col("op_offset").alias("op_offset"))
    resume = F.max(F.when(F.col("verdict") == int(Ruling.ACCEPT), came)).over(
        Window.partitionBy("first_queue", "first_offset")
    )
    after = ~_is_before(resume["at"], resume["op_offset"])
    ended = (F.col("verdict") == int(Refusal.ALREADY_DISCARDED)) & (F.col("kind") != int(Kind.RESUME))
    return judged.withColumn("verdict", F.when(ended & _yes(after), int(Ruling.AGAIN)).otherwise(F.col("verdict")))


def _reopen(judged: DataFrame, tables: LedgerTables, timeout_ms: int) -> DataFrame:
    """The rows of reopened transactions: the first half message and the parts that were discarded with it."""
    accepted = judged.where(F.col("verdict") == int(Ruling.ACCEPT)).select(
        "first_queue",
        "first_offset",
        *[F.col(name).alias(f"resume_{name}") for name in ("op_queue", "op_offset")],
        F.unix_millis("record.stored_at").alias("resumed"),
        (F.col("ledger.round") + 1).alias("new_round"),
    )
    where = (("first_queue", "first_queue"), ("first_offset", "first_offset"))
    half = near(tables.half, accepted, *where).join(accepted, ["first_queue", "first_offset"])
    ended = newest(tables.transactions.where("state = 'DISCARDED'")).where("reason != 'ORPHAN'")
    half = half.join(
        ended.select("queue", F.col("half_offset").alias("queue_offset")), ["queue", "queue_offset"], "left_semi"
    )
    return half_rows(
        half,
        op_queue="resume_op_queue",
        op_offset="resume_op_offset",
        admin="1",
        round="new_round",
        since=f"IF({IS_FIRST}, resumed, -1)",
        due=f"IF({IS_FIRST}, resumed + {timeout_ms + 1}, -1)",
    )
