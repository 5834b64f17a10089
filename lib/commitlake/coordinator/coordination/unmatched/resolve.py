"""Resolution of the ops and parts of a batch that met no open message, by the ledger.

Contract 4.1, 4.2, 4.6, 4.8 and 4.10. A late part follows its first half message, or is an ORPHAN.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_rows import REOPENED, half_rows, op_rows, refused_rows, waiting_rows
from commitlake.coordinator.coordination.unmatched.lookup import (
    FINAL,
    LedgerTables,
    first_facts,
    near,
    newest,
    number,
    with_first,
)
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions, event_rows, judged
from commitlake.protocol.states import Delivery, Event, Kind, Reason, Refusal, Ruling, Source, State
from commitlake.spark.frames import checkpoint_now
from commitlake.spark.parallel import run_all
from commitlake.tables.columns import IS_FIRST, hashed_sql, millis_sql
from commitlake.tables.spans import spans_of, within


class Resolved(NamedTuple):
    """The events of a batch, resolutions included.

    Attributes:
        events: all events.
        requeued: input rows for the next batch, None when there are none.
        reopened: the requeued rows that RESUMEs have reopened, None when there are none.
    """

    events: Events
    requeued: DataFrame | None = None
    reopened: DataFrame | None = None


def resolved(context: Context, events: Events) -> Resolved:
    """The events, and the resolutions of the unmatched ones."""
    resolutions = _resolutions(context, events)
    if resolutions is None:
        return Resolved(events)
    requeued = checkpoint_now(resolutions.requeued)
    every = events.with_more(resolutions.events)
    events.release()
    every.check_ends()
    return Resolved(every, *(rows if rows.count() else None for rows in (requeued, requeued.where(REOPENED))))


def _resolutions(context: Context, events: Events) -> Resolutions | None:
    if not events.count(Event.UNMATCHED_OP, Event.UNMATCHED_PART):
        return None
    tables, found, tasks = LedgerTables.of(context.warehouse), [], []
    resumes = events.count(Event.UNMATCHED_OP, kind=Kind.RESUME)
    if resumes:  # first: for all other unmatched rows of this batch, a reopened transaction is open
        found.append(resolve_resumes(events, tables, context.config.transaction.timeout_ms))
        tables = tables.with_reopened(found[0].requeued)
    if events.count(Event.UNMATCHED_OP, src=Source.HALF) > resumes:
        tasks.append(partial(resolve_ops, events, tables))
    if events.count(Event.UNMATCHED_OP, src=Source.MESSAGES):
        tasks.append(partial(resolve_recalls, events, tables))
    if events.count(Event.UNMATCHED_PART, src=Source.HALF):
        tasks.append(partial(resolve_parts, events, tables))
    return reduce(add, found + run_all(context.warehouse.spark, tasks))


_OP = ["op_queue", "op_offset", "admin"]
_WRONG = {
    "missing": "part IS NULL",
    "other_tid": "part.transaction_id != record.transaction_id",
    "other_grp": "part.producer_group != record.producer_group",
    "foreign": "part.first_queue != first_queue OR part.first_offset != first_offset",
    "orphan": "orphan",
}
"""By fact about the further half messages that an op lists: SQL, whether it holds for one."""
_AT = ["first_queue", "first_offset"]
_PLACE = ["queue", "queue_offset"]
_AT_OP = (("queue", "op_queue"), ("op_offset", "op_offset"))


def resolve_ops(batch: Events, tables: LedgerTables) -> Resolutions:
    """Refuses a COMMIT or ROLLBACK that conflicts, has no half message, or names the wrong id, group or part.

    Args:
        batch: the batch's events.
        tables: the tables as before the batch, except for transactions that a RESUME has reopened in it.
    """
    found = checkpoint_now(judged_ops(_of_kind(batch, f"!= {int(Kind.RESUME)}"), tables))
    return Resolutions(refusals(found), requeued(found))


def resolve_resumes(batch: Events, tables: LedgerTables, timeout_ms: int) -> Resolutions:
    """Reopens the transactions that a RESUME may reopen.

    Args:
        batch: the batch's events.
        tables: the tables as before the batch.
        timeout_ms: age of a reopened transaction, in ms since its RESUME, at its first check.
    """
    unmatched = _with_refused_parts(_of_kind(batch, f"= {int(Kind.RESUME)}"), tables)
    found = judged_ops(unmatched, tables, is_final=f"{FINAL} OR is_spoiled")
    found = checkpoint_now(_accept_the_first(found))
    return Resolutions(refusals(found), _reopen(found, tables, timeout_ms))


def resolve_recalls(batch: Events, tables: LedgerTables) -> Resolutions:
    """Refuses a recall of a delivered message, or one with another id or topic; a repeated recall is harmless."""
    found = checkpoint_now(judged_recalls(batch.of(Event.UNMATCHED_OP, Source.MESSAGES), tables))
    return Resolutions(refusals(found), requeued(found))


def _of_kind(batch: Events, which: str) -> DataFrame:
    return batch.of(Event.UNMATCHED_OP, Source.HALF).where(f"kind {which}")


def _with_refused_parts(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Adds `is_spoiled`: whether a part was refused, maybe after the transaction had ended."""
    half = near(tables.half, unmatched, ("queue", "first_queue"), ("queue_offset", "first_offset"))
    same = ["queue", "offset", "tid", "grp"]
    spoiled = half_rows(half).join(refused_rows(tables.rejected), same, "left_semi")
    spoiled = spoiled.selectExpr("queue AS first_queue", "offset AS first_offset", "true AS is_spoiled").distinct()
    return unmatched.join(spoiled, _AT, "left")


def judged_ops(unmatched: DataFrame, tables: LedgerTables, *, is_final: str = FINAL) -> DataFrame:
    """Unmatched ops, with `record`, the facts about the messages that they name, and the `verdict` on each.

    Args:
        unmatched: the ops.
        tables: the ledger.
        is_final: SQL; whether no RESUME may reopen the first half message.
    """
    unmatched = checkpoint_now(with_record(unmatched, tables))
    facts = with_first(unmatched, tables).join(wrong_parts(unmatched, tables), _OP, "left")
    group = hashed_sql("coalesce(record.producer_group, '')")
    own: dict[str, Column | str] = {name: name for name in ("kind", "admin", "op_offset", *_WRONG)}
    own |= {"tid": hashed_sql("record.transaction_id"), "grp": group, "stored": millis_sql("record.stored_at")}
    return judged(facts, **own | first_facts() | {"is_final": is_final})


def judged_recalls(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Unmatched recalls, with `record`, the facts about the message that they name, and the `verdict` on each."""
    unmatched = checkpoint_now(with_record(unmatched, tables))
    where = (("queue", "first_queue"), ("queue_offset", "first_offset"))
    at = ("queue AS first_queue", "queue_offset AS first_offset")
    message = near(tables.delayed, unmatched, *where).selectExpr(*at, "struct(message_id, topic) AS message")
    ended = near(tables.deliveries.where("source = 'messages'"), unmatched, *where)
    ended = ended.selectExpr(*at, "state AS ended")
    facts = unmatched.join(message, _AT, "left").join(ended, _AT, "left")
    return judged(
        facts,
        kind="kind",
        last="last",
        tid=hashed_sql("record.message_id"),
        grp=hashed_sql("record.topic"),
        is_known="message IS NOT NULL",
        first_tid=hashed_sql("message.message_id"),
        first_grp=hashed_sql("message.topic"),
        state=number(Delivery, "ended"),
    )


def requeued(judged: DataFrame) -> DataFrame:
    """Input rows of the ops that wait for the next batch."""
    return op_rows(judged.where(F.col("verdict") == int(Ruling.REQUEUE)).select("record.*"), due="0")


def refusals(judged: DataFrame) -> DataFrame:
    """REFUSED events of the rows whose verdict is a refusal."""
    refused = judged.where(F.col("verdict") > 0)
    where = {name: F.col(name) for name in ("op_queue", "op_offset", "admin", "src", "now")}
    return event_rows(refused, event=Event.REFUSED, reason=F.col("verdict"), **where)


def with_record(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Adds the op record as `record`."""
    record = near(tables.op, unmatched, *_AT_OP)
    columns = ("queue AS op_queue", "op_offset", "INT(admin) AS admin", "struct(*) AS record")
    return unmatched.join(record.selectExpr(*columns), _OP)


def wrong_parts(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    """Errors of the further half messages that ops list, a row for each op; false or null where there is none."""
    if unmatched.where("size(record.half_messages) > 1").isEmpty():
        return unmatched.selectExpr(*_OP, *[f"CAST(NULL AS BOOLEAN) AS {name}" for name in _WRONG])
    listed = unmatched.selectExpr("*", "explode(slice(record.half_messages, 2, 1000)) AS m")
    listed = listed.selectExpr(*_OP, "record", *_AT, "m.queue AS queue", "m.offset AS queue_offset")
    spans = spans_of(listed, *_PLACE)
    half = tables.half.where(within(spans, "queue", "queue_offset"))
    half = half.selectExpr(*_PLACE, "struct(transaction_id, producer_group, first_queue, first_offset) AS part")
    orphans = tables.transactions.where(within(spans, "queue", "half_offset")).where("reason = 'ORPHAN'")
    orphans = orphans.selectExpr("queue", "half_offset AS queue_offset", "true AS orphan")
    found = listed.join(half, _PLACE, "left").join(orphans, _PLACE, "left")
    return found.groupBy(*_OP).agg(*[F.expr(f"max({wrong})").alias(name) for name, wrong in _WRONG.items()])


def _accept_the_first(judged: DataFrame) -> DataFrame:
    """Accepts the first of several RESUMEs of a transaction in a batch; for the others the transaction is open."""
    accepted = F.col("verdict") == int(Ruling.ACCEPT)
    order = Window.partitionBy("first_queue", "first_offset", accepted).orderBy("record.stored_at", "op_offset")
    late = accepted & (F.row_number().over(order) > 1)
    return judged.withColumn("verdict", F.when(late, int(Refusal.NOT_DISCARDED)).otherwise(F.col("verdict")))


def _reopen(judged: DataFrame, tables: LedgerTables, timeout_ms: int) -> DataFrame:
    """The rows of reopened transactions: the first half message and the parts that were discarded with it."""
    accepted = judged.where(F.col("verdict") == int(Ruling.ACCEPT)).selectExpr(
        *(*_AT, "op_queue AS resume_op_queue", "op_offset AS resume_op_offset"),
        *("unix_millis(record.stored_at) AS resumed", "ledger.round + 1 AS new_round"),
    )
    where = (("first_queue", "first_queue"), ("first_offset", "first_offset"))
    half = near(tables.half, accepted, *where).join(accepted, _AT)
    ended = newest(tables.transactions.where("state = 'DISCARDED'")).where("reason != 'ORPHAN'")
    half = half.join(ended.selectExpr("queue", "half_offset AS queue_offset"), _PLACE, "left_semi")
    return half_rows(
        half,
        op_queue="resume_op_queue",
        op_offset="resume_op_offset",
        admin="1",
        round="new_round",
        since=f"IF({IS_FIRST}, resumed, -1)",
        due=f"IF({IS_FIRST}, resumed + {timeout_ms + 1}, -1)",
    )


_PART = ["queue", "offset"]


def resolve_parts(batch: Events, tables: LedgerTables) -> Resolutions:
    """Gives a late part the state, reason and op of its first; discards one without a matching first as ORPHAN."""
    unmatched = checkpoint_now(batch.of(Event.UNMATCHED_PART, Source.HALF))
    facts = with_first(unmatched, tables).join(_messages(unmatched, tables), _PART)
    tid, grp = (hashed_sql(f"message.{name}") for name in ("transaction_id", "producer_group"))
    found = checkpoint_now(judged(facts, kind=F.lit(int(Kind.PART)), tid=tid, grp=grp, **first_facts()))
    found = checkpoint_now(_with_due(found, tables))
    follow = found.where(F.col("verdict") == int(Ruling.FOLLOW))
    again = half_rows(found.where(F.col("verdict") == int(Ruling.REQUEUE)).select("message.*"), due="0")
    waiting = waiting_rows(follow.where(F.col("due") > F.col("now")), "offset", "due")
    orphans = _orphans(found.where(F.col("verdict") == int(Ruling.ORPHAN)))
    return Resolutions(orphans.union(_followers(follow)).union(_delivered(follow)), again.union(waiting))


def _messages(unmatched: DataFrame, tables: LedgerTables) -> DataFrame:
    half = near(tables.half, unmatched, ("queue", "queue"), ("queue_offset", "offset")).drop("body", "sharding_key")
    return half.selectExpr("queue", "queue_offset AS offset", "struct(*) AS message")


def _with_due(judged: DataFrame, tables: LedgerTables) -> DataFrame:
    """Adds `due`; a relative delay counts from the op that committed the first half message."""
    relative_ones = judged.where("message.delay_ms IS NOT NULL AND ledger.op_queue IS NOT NULL")
    op = near(tables.op, relative_ones, ("queue", "ledger.op_queue"), ("op_offset", "ledger.op_offset"))
    op = op.where("decision = 'COMMIT'").selectExpr(
        "queue AS d_queue", "op_offset AS d_offset", "admin AS d_admin", f"{millis_sql('stored_at')} AS committed"
    )
    same_op = "d_queue = ledger.op_queue AND d_offset = ledger.op_offset AND d_admin = (ledger.reason = 'ADMIN')"
    due = "coalesce(unix_millis(message.deliver_at), committed + message.delay_ms, -1)"
    shown = f"IF(coalesce(ledger.state = 'COMMITTED', false), {due}, -1)"
    return judged.join(op, F.expr(same_op), "left").withColumn("due", F.expr(shown))


def _at() -> dict[str, Column | int]:
    names = ("queue", "offset", "first_queue", "first_offset", "now")
    return {"src": Source.HALF, **{name: F.col(name) for name in names}}


def _orphans(parts: DataFrame) -> DataFrame:
    ended = {"state": State.DISCARDED, "reason": Reason.ORPHAN, "checks": 0, "round": 0}
    return event_rows(parts, event=Event.DECIDED, **_at(), **ended)


def _followers(parts: DataFrame) -> DataFrame:
    return event_rows(
        parts,
        event=Event.DECIDED,
        **_at(),
        state=number(State, "ledger.state"),
        reason=number(Reason, "ledger.reason"),
        op_queue=F.coalesce("ledger.op_queue", F.lit(-1)),
        op_offset=F.coalesce("ledger.op_offset", F.lit(-1)),
        checks=F.col("ledger.checks"),
        round=F.col("ledger.round"),
        deliver_at=F.col("due"),
    )


def _delivered(parts: DataFrame) -> DataFrame:
    over = parts.where((F.col("due") >= 0) & (F.col("due") <= F.col("now")))
    return event_rows(over, event=Event.DELIVERY, **_at(), state=Delivery.DELIVERED, deliver_at=F.col("due"))
