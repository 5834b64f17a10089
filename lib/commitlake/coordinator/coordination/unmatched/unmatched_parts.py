"""Resolution of parts whose first half message is not open: they follow it, or are an ORPHAN (contract 4.8)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_rows import half_rows, waiting_rows
from commitlake.coordinator.coordination.unmatched.lookup import LedgerTables, first_facts, near, number, with_first
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions, events, judged
from commitlake.protocol.states import Delivery, Event, Kind, Reason, Ruling, Source, State
from commitlake.spark.frames import checkpoint_now
from commitlake.tables.columns import hashed_sql, millis_sql

_PART = ["queue", "offset"]


def resolve(batch: Events, tables: LedgerTables) -> Resolutions:
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
    return events(parts, event=Event.DECIDED, **_at(), **ended)


def _followers(parts: DataFrame) -> DataFrame:
    return events(
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
    return events(over, event=Event.DELIVERY, **_at(), state=Delivery.DELIVERED, deliver_at=F.col("due"))
