"""The open rows, from the tables alone: the input rows with which every start of coordination begins.

The tables are the truth; Spark's checkpoint of coordination is scratch for one run. So a deleted, older or foreign
checkpoint leads to the ordinary start. A changed state layout, changed timing keys and another number of shuffle
partitions do so too. Only the key columns of decided history are read. No decided message is decided or reported again.
"""

from __future__ import annotations

from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.config import Config, TransactionConfig
from commitlake.coordinator.coordination import input_rows
from commitlake.coordinator.coordination.unmatched.lookup import with_first
from commitlake.coordinator.coordination.unmatched.resolve import judged_ops, judged_recalls
from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.recovery import snapshot
from commitlake.coordinator.recovery.snapshot import BEGINNING, Between, SnapshotPosition
from commitlake.protocol.statemachine.deadlines import LONGEST_PAUSE_MS
from commitlake.protocol.states import OFFSET_USED_BEFORE, Kind, Ruling, Source
from commitlake.spark import session
from commitlake.spark.frames import checkpoint_now
from commitlake.spark.parallel import run_all
from commitlake.tables import Warehouse
from commitlake.tables.columns import coordinate_sql
from commitlake.tables.spans import spans_of, within

_SMALL = 1_000_000
"""With fewer landed records the plain settings suffice, and a start is two seconds shorter."""
_HALVES = (Kind.HALF, Kind.PART)
_OPS = (Kind.COMMIT, Kind.ROLLBACK, Kind.RESUME, Kind.RECALL, Kind.LISTED)
_AT_OP = ["op_queue", "op_offset", "admin"]
_OWN_PLACE = coordinate_sql(
    f"IF(kind = {int(Kind.PART)}, part_queue, queue)", f"IF(kind = {int(Kind.PART)}, part_offset, offset)"
)


def session_for(warehouse: Warehouse, config: Config, since: SnapshotPosition, landed: LandingPosition) -> SparkSession:
    """A session for the join of the saved rows with what landed since, however much that is."""
    settings = session.HISTORY_SETTINGS if _is_history(since, landed.records()) else None
    return session.beside(warehouse.spark, config, settings)


def _is_history(since: SnapshotPosition, records: int) -> bool:
    """Whether plain settings do not do: 20 million keys sorted in two partitions do not fit 2 GiB."""
    return records - since.records() + since.count() > _SMALL


def save_snapshot(warehouse: Warehouse, timing: TransactionConfig, plain: Warehouse | None = None) -> None:
    """Saves the open rows, so that a start need not read the history before them.

    The saved rows are read before the position. If another process saves in between, the position is not before theirs:
    rows of a later time under an earlier position would be open twice.

    Args:
        warehouse: the tables, in a session that can join history.
        timing: the timings of the deadlines.
        plain: the same tables in a session with plain settings, for the join of few records.
    """
    since = snapshot.newest(plain or warehouse, timing)
    at = snapshot.reached(plain or warehouse, since)
    if at is not None:
        own = warehouse if plain is None or _is_history(since, at.records()) else plain
        snapshot.save(own, timing, at, open_rows(own, timing, since, at))


def open_rows(
    warehouse: Warehouse,
    timing: TransactionConfig,
    since: SnapshotPosition = BEGINNING,
    until: SnapshotPosition | None = None,
) -> DataFrame:
    """All open input rows, by the tables, while nothing lands.

    Args:
        warehouse: the tables.
        timing: the timings of the next deadlines, so changed timing keys hold from the next start on.
        since: the saved rows, and the position of the tables at that time; only later rows are read.
        until: a position of the tables; rows that have landed or were written later are left out. None: all rows.
    """
    look = Between(warehouse, since, until)
    halves, ops, refused = run_all(
        warehouse.spark, [partial(_with_checks, look, timing), partial(_undecided, look), partial(_refused_parts, look)]
    )
    every = [halves, refused, _open_ops(ops, halves, look), _open_delayed(look), _open_waiting(look)]
    return reduce(DataFrame.unionByName, every)


def _open_halves(look: Between, timing: TransactionConfig) -> DataFrame:
    """Half messages without an end in their newest round."""
    new = input_rows.half_rows(look.landed("half", "queue", "queue_offset", half="true"))
    due = f"IF(kind = {int(Kind.HALF)}, since + {timing.timeout_ms + 1}, -1)"
    resumed = look.resumed().withColumn("due", F.expr(due))
    every = look.with_saved(new.unionByName(resumed), *_HALVES)
    ends = look.written("transactions").selectExpr(
        f"{coordinate_sql('queue', 'half_offset')} AS ended_at", "round AS ended_round", "reason"
    )
    is_over = (F.col("ended_round") >= F.col("round")) | (F.col("reason") == "ORPHAN")
    return every.join(ends, (F.expr(_OWN_PLACE) == F.col("ended_at")) & is_over, "left_anti")


def _with_checks(look: Between, timing: TransactionConfig) -> DataFrame:
    """The open half messages, their checks brought up to date (4.3); an answer counts as in `deadlines.answer`."""
    halves = checkpoint_now(_open_halves(look, timing))
    checked = checkpoint_now(_newest_checks(look))
    if checked.isEmpty() and halves.where("repeat >= 0").isEmpty():  # no check is out, as mostly
        return halves
    first = f"kind = {int(Kind.HALF)}"
    same_round = f"{first} AND c_queue = queue AND c_offset = offset AND c_round = round"
    asked = halves.join(checked, F.expr(same_round), "left")
    asked = asked.selectExpr(
        "*",
        "coalesce(last.check_no, checks) AS number",
        "coalesce(last.repeat, repeat) AS out",
        f"coalesce(unix_millis(last.requested_at), due - {_pause('repeat', timing)}) AS asked_at",
    )
    same_half = f"{first} AND a_queue = queue AND a_offset = offset AND a_tid = tid AND a_grp = grp"
    found = asked.join(_answers(look), F.expr(same_half), "left")
    fits = "(a.checks = number AND a.round = round) OR (a.checks = -1 AND a.stored > asked_at)"
    found = found.selectExpr(
        "*", f"IF(out >= 0, array_min(transform(filter(given, a -> {fits}), a -> a.stored)), NULL) AS answered_at"
    )
    next_due = (
        f"CASE WHEN answered_at IS NOT NULL THEN answered_at + {timing.check_interval_ms} "
        f"WHEN out >= 0 THEN asked_at + {_pause('out', timing)} ELSE due END"
    )
    changed = {"checks": "number", "repeat": "IF(answered_at IS NULL, out, -1)", "due": next_due}
    return input_rows.rows(found, **{name: name for name in input_rows.INPUT_SCHEMA.names} | changed)


def _newest_checks(look: Between) -> DataFrame:
    """The newest check of each round."""
    each = look.written("checks").selectExpr(
        *("queue AS c_queue", "half_offset AS c_offset", "round AS c_round"),
        "struct(check_no, coalesce(repeat, 0) AS repeat, requested_at) AS asked",  # version 0.1 repeated none
    )
    return each.groupBy("c_queue", "c_offset", "c_round").agg(F.max("asked").alias("last"))


def _answers(look: Between) -> DataFrame:
    """The answers that the outcome is still unknown, by half message, id and group."""
    answers = input_rows.op_rows(look.landed("op", "queue", "op_offset", op=input_rows.IS_ANSWER))
    place = [f"{name} AS a_{name}" for name in ("queue", "offset", "tid", "grp")]
    each = answers.selectExpr(*place, "struct(checks, round, stored) AS answer")
    return each.groupBy("a_queue", "a_offset", "a_tid", "a_grp").agg(F.collect_list("answer").alias("given"))


def _pause(repeat: str, timing: TransactionConfig) -> str:
    """SQL of `deadlines.pause_before_repeat`, in ms."""
    if timing.counts_unanswered:
        return str(timing.check_interval_ms)
    longest = max(LONGEST_PAUSE_MS, timing.check_repeat_ms)
    return f"CAST(least({timing.check_repeat_ms} * pow(2, least({repeat}, 40)), {longest}) AS BIGINT)"


def _refused_parts(look: Between) -> DataFrame:
    """Parts that landing has refused, of first half messages that are open or have not landed; few in most starts.

    A record at an offset used before came later than its offset says, so all such records are read each time.
    """
    used = look.warehouse.rows("rejected").where(f"source = 'half' AND reason = '{OFFSET_USED_BEFORE}'")
    new = look.landed("rejected", "kafka_partition", "kafka_offset", half="source = 'half'").union(used)
    refused = checkpoint_now(look.with_saved(input_rows.refused_rows(new), Kind.REFUSED_PART).distinct())
    if refused.isEmpty():
        return refused
    named = refused.selectExpr("*", "queue AS first_queue", "offset AS first_offset")
    return with_first(named, look.ledger()).where("pending").select(*refused.columns)


def _undecided(look: Between) -> DataFrame:
    """Ops that have not decided; mostly few."""
    asked = look.landed("op", "queue", "op_offset", op="NOT admin", admin="admin")
    new = input_rows.op_rows(asked).where(f"kind != {int(Kind.UNKNOWN)}")
    return checkpoint_now(_without_deciding(look.with_saved(new, *_OPS), look.written("transactions")))


def _open_ops(undecided: DataFrame, halves: DataFrame, look: Between) -> DataFrame:
    """The ops that were not refused either, and do not only repeat the decision of their transaction."""
    refused = look.warehouse.rows("rejected").where(f"source IN ('op', 'admin') AND reason != '{OFFSET_USED_BEFORE}'")
    refused = refused.where(within(spans_of(undecided, "op_queue", "op_offset"), "kafka_partition", "kafka_offset"))
    done = refused.selectExpr(
        "kafka_partition AS op_queue", "kafka_offset AS op_offset", "IF(source = 'admin', 1, 0) AS admin"
    ).union(look.resumed().where(f"kind = {int(Kind.HALF)}").select(*_AT_OP))
    left = undecided.join(done, _AT_OP, "left_anti")
    return left.join(_harmless(left, halves, look), _AT_OP, "left_anti")


def _without_deciding(ops: DataFrame, transactions: DataFrame) -> DataFrame:
    """The ops without those that decided an end. The rows are narrow, since millions are compared."""
    ends = transactions.selectExpr(
        f"{coordinate_sql('queue', 'half_offset')} AS e_at",
        *("op_queue AS e_op_queue", "op_offset AS e_op_offset", "IF(reason = 'ADMIN', 1, 0) AS e_admin"),
    )
    same = f"src = {int(Source.HALF)} AND e_op_queue = op_queue AND e_op_offset = op_offset AND e_admin = admin"
    at = F.expr(coordinate_sql("queue", "offset"))
    return ops.join(ends, (at == F.col("e_at")) & F.expr(same), "left_anti")


def _harmless(ops: DataFrame, halves: DataFrame, look: Between) -> DataFrame:
    """The places of ops that only repeat a decision, as a resolution would find; most starts have few.

    An op about an open half message repeats none. After a kill nearly all are such, and their lookup would be a third
    of a start's work.
    """
    unmatched = ops.selectExpr(*_AT_OP, "kind", "queue AS first_queue", "offset AS first_offset", "0 AS last")
    is_open = halves.where(f"kind = {int(Kind.HALF)}").selectExpr("queue AS first_queue", "offset AS first_offset")
    decisions = unmatched.where(f"kind IN ({int(Kind.COMMIT)}, {int(Kind.ROLLBACK)})")
    decisions = decisions.join(is_open, ["first_queue", "first_offset"], "left_anti")
    recalls = unmatched.where(f"kind = {int(Kind.RECALL)}")
    found = ops.select(*_AT_OP).where("false")
    for judged, asked in ((judged_ops, decisions), (judged_recalls, recalls)):
        if not asked.isEmpty():
            same = judged(asked, look.ledger()).where(f"verdict = {int(Ruling.NOTHING)}")
            found = found.union(same.select(*_AT_OP))
    return found


def _open_delayed(look: Between) -> DataFrame:
    new = input_rows.delayed_rows(look.landed("delayed", "queue", "queue_offset", messages="true"))
    return _without_delivery(look.with_saved(new, Kind.DELAYED), look, Source.MESSAGES, "queue", "offset")


def _open_waiting(look: Between) -> DataFrame:
    """Committed half messages with a delay that has not ended."""
    committed = look.written("transactions").where("state = 'COMMITTED' AND deliver_at IS NOT NULL")
    new = input_rows.waiting_rows(committed, "half_offset", "unix_millis(deliver_at)")
    return _without_delivery(look.with_saved(new, Kind.WAITING), look, Source.HALF, "part_queue", "part_offset")


def _without_delivery(timers: DataFrame, look: Between, source: Source, queue: str, offset: str) -> DataFrame:
    name = source.name.lower()
    done = look.written("deliveries").where(f"source = '{name}'")
    done = done.selectExpr(f"{coordinate_sql('queue', 'queue_offset')} AS d_at")
    return timers.join(done, F.expr(coordinate_sql(queue, offset)) == F.col("d_at"), "left_anti")
