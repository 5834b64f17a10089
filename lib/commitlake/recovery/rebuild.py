"""What is open, from the tables alone: the input rows with which every start of coordination begins.

The tables are the truth; Spark's checkpoint of coordination is scratch for one run. So a deleted, older or foreign
checkpoint, a changed state layout, changed timing keys and another number of shuffle partitions are all the same
case: the ordinary start. Decided history is read by its key columns only, and nothing decided is decided or reported
again.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from commitlake.config import Config, TransactionConfig
from commitlake.coordination.input_rows import IS_ANSWER, delayed_rows, half_rows, op_rows, waiting_rows
from commitlake.protocol.states import Kind, Source
from commitlake.spark import session
from commitlake.tables import Warehouse
from commitlake.tables.columns import coordinate, hashed

_STATE_OF = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}


_SMALL = 1_000_000
"""Records that ever landed, below which plain settings do: a start is two seconds shorter then."""


def session_for(warehouse: Warehouse, config: Config, landed: int) -> SparkSession:
    """A session that can join history, however long: 20 million keys sorted in two partitions do not fit 2 GiB.

    Args:
        warehouse: the tables.
        config: the configuration.
        landed: how many records have ever landed.
    """
    return session.beside(warehouse.spark, config, session.HISTORY_SETTINGS if landed > _SMALL else None)


def open_rows(warehouse: Warehouse, timing: TransactionConfig) -> DataFrame:
    """All input rows that are not done with, as the tables show while nothing lands.

    Args:
        warehouse: the tables.
        timing: next deadlines follow it, so changed timing keys hold from the next start on.
    """
    half, op, delayed = (_with_landing_time(warehouse.read(name)) for name in ("half", "op", "delayed"))
    ended, delivered = warehouse.read("transactions"), warehouse.read("deliveries")
    again = warehouse.read("reentries")
    parts = [
        _open_halves(half, ended, again, _newest_checks(warehouse.read("checks"), op, timing), timing),
        op_rows(_open_ops(op, ended, delivered, again, warehouse.read("rejected")), since="landed"),
        delayed_rows(_without_delivery(delayed, delivered, Source.MESSAGES, "queue_offset")),
        waiting_rows(
            _without_delivery(
                ended.where("state = 'COMMITTED' AND deliver_at IS NOT NULL"), delivered, Source.HALF, "half_offset"
            ),
            "half_offset",
            "unix_millis(deliver_at)",
        ),
    ]
    return parts[0].union(parts[1]).union(parts[2]).union(parts[3])


def _with_landing_time(table: DataFrame) -> DataFrame:
    """Adds `landed` (ms): the batch that first saw a row came right after, so park times go on across starts."""
    return table.select("*", F.unix_millis("_metadata.file_modification_time").alias("landed"))


def _open_halves(
    half: DataFrame, ended: DataFrame, again: DataFrame, checks: DataFrame, timing: TransactionConfig
) -> DataFrame:
    """Half messages without an end in their newest round, with the newest check of that round."""
    narrow = half.drop("body", "sharding_key", "properties", "message_id", "topic", "tags", "keys")
    resumed = again.where((F.col("kind") == int(Kind.HALF)) & (F.col("round") > 0))
    latest = resumed.groupBy(F.col("queue").alias("first_queue"), F.col("offset").alias("first_offset")).agg(
        F.max(F.struct("round", "since", "op_queue", "op_offset")).alias("resume")
    )
    ends = ended.select(
        coordinate("queue", "half_offset").alias("ended_at"), F.col("round").alias("ended_round"), "reason"
    )
    found = narrow.join(F.broadcast(latest), ["first_queue", "first_offset"], "left").withColumn(
        "open_round", F.coalesce("resume.round", F.lit(0))
    )
    done = (F.col("ended_round") >= F.col("open_round")) | (F.col("reason") == "ORPHAN")
    is_open = found.join(ends, (coordinate("queue", "queue_offset") == F.col("ended_at")) & done, "left_anti")
    return _with_deadlines(is_open.join(checks, ["queue", "queue_offset", "open_round"], "left"), timing)


def _newest_checks(checks: DataFrame, op: DataFrame, timing: TransactionConfig) -> DataFrame:
    """The newest check of each round: whether it is out (`repeat`, else -1), and when something is due (`check_due`).

    An answer counts as in the state machine (`statemachine.answers`), and puts off the other checks of its group.
    """
    each = checks.selectExpr("*", "struct(check_no, coalesce(repeat, 0) AS repeat, requested_at) AS asked")
    round_of = ["queue", "half_offset", "transaction_id", "producer_group", "round"]
    newest = each.groupBy(*round_of).agg(F.max("asked").alias("last"))
    answers = op.where(IS_ANSWER).selectExpr(
        "half_messages[0].queue AS queue",
        "half_messages[0].offset AS half_offset",
        *("transaction_id", "producer_group", "check_id", "stored_at"),
    )
    lately = f"stored_at > timestamp_millis(unix_millis(current_timestamp()) - {timing.check_repeat_ms})"
    answering = op.where(f"(from_check OR check_id IS NOT NULL) AND NOT admin AND {lately}")
    heard = answering.groupBy("producer_group").agg(F.max("stored_at").alias("heard_at"))
    names_it = "check_id = concat_ws('-', queue, half_offset, round, last.check_no)"
    fits = F.expr(f"coalesce({names_it}, stored_at > last.requested_at)")
    found = newest.join(answers, ["queue", "half_offset", "transaction_id", "producer_group"], "left")
    answered = found.groupBy(*round_of, "last").agg(F.min(F.when(fits, F.col("stored_at"))).alias("answered_at"))
    return answered.join(heard, "producer_group", "left").selectExpr(
        *("queue", "half_offset AS queue_offset", "round AS open_round", "last.check_no"),
        "IF(answered_at IS NULL, last.repeat, -1) AS repeat",
        f"coalesce(unix_millis(answered_at) + {timing.check_interval_ms}, "
        f"unix_millis(greatest(last.requested_at, heard_at)) + {timing.check_repeat_ms}) AS check_due",
    )


def _with_deadlines(halves: DataFrame, timing: TransactionConfig) -> DataFrame:
    """A part has no deadline of its own; it waits for its first from the time when it landed."""
    first = "first_queue = queue AND first_offset = queue_offset"
    resumed = f"resume.since + {timing.timeout_ms + 1}"
    return half_rows(
        halves,
        checks="coalesce(check_no, 0)",
        repeat="coalesce(repeat, -1)",
        round="open_round",
        since=f"IF({first}, coalesce(resume.since, -1), landed)",
        due=f"IF({first}, coalesce(check_due, {resumed}, -1), -1)",
        op_queue=f"IF({first}, coalesce(resume.op_queue, -1), -1)",
        op_offset=f"IF({first}, coalesce(resume.op_offset, -1), -1)",
    )


def _open_ops(
    op: DataFrame, ended: DataFrame, delivered: DataFrame, again: DataFrame, rejected: DataFrame
) -> DataFrame:
    """Ops that neither decided, nor were refused, nor only repeat how their transaction ended."""
    asks = op.where("decision IN ('COMMIT', 'ROLLBACK', 'RESUME', 'RECALL')").withColumn(
        "first", F.col("half_messages")[0]
    )
    refused = rejected.where("source IN ('op', 'admin')").select(
        F.col("kafka_partition").alias("queue"),
        F.col("kafka_offset").alias("op_offset"),
        (F.col("source") == "admin").alias("admin"),
    )
    resumed = again.where((F.col("kind") == int(Kind.HALF)) & (F.col("op_offset") >= 0)).select(
        F.col("op_queue").alias("queue"), "op_offset", (F.col("admin") == 1).alias("admin")
    )
    left = asks.join(F.broadcast(refused.union(resumed)), ["queue", "op_offset", "admin"], "left_anti")
    recalls = left.where("decision = 'RECALL'").join(_recalled(delivered), _same_recall(), "left_anti")
    decisions = left.where("decision != 'RECALL'").join(_ends(ended), _same_end(), "left_anti")
    return decisions.union(recalls)


def _ends(ended: DataFrame) -> DataFrame:
    """Narrow, hashed: tens of millions of rows are compared."""
    return ended.select(
        coordinate("queue", "half_offset").alias("e_at"),
        F.col("op_queue").alias("e_op_queue"),
        F.col("op_offset").alias("e_op_offset"),
        (F.col("reason") == "ADMIN").alias("e_admin"),
        F.col("state").alias("e_state"),
        hashed("transaction_id").alias("e_tid"),
        hashed("producer_group").alias("e_grp"),
    )


def _same_end() -> Column:
    """The op decided this, or says once more what was decided."""
    states = F.create_map(*[F.lit(text) for pair in _STATE_OF.items() for text in pair])
    decided = (
        (F.col("e_op_queue") == F.col("queue"))
        & (F.col("e_op_offset") == F.col("op_offset"))
        & (F.col("e_admin") == F.col("admin"))
    )
    repeats = (
        (F.size("half_messages") == 1)
        & (F.col("e_state") == states[F.col("decision")])
        & (F.col("e_tid") == hashed("transaction_id"))
        & (F.col("admin") | (F.col("e_grp") == hashed("producer_group")))
    )
    return (coordinate("first.queue", "first.offset") == F.col("e_at")) & (decided | repeats)


def _recalled(delivered: DataFrame) -> DataFrame:
    done = delivered.where("source = 'messages' AND state = 'RECALLED'")
    return done.select(
        coordinate("queue", "queue_offset").alias("r_at"),
        F.col("message_id").alias("r_id"),
        F.col("topic").alias("r_topic"),
    )


def _same_recall() -> Column:
    same = (F.col("r_id") == F.col("message_id")) & (F.col("r_topic") == F.col("topic"))
    return (coordinate("first.queue", "first.offset") == F.col("r_at")) & same


def _without_delivery(messages: DataFrame, delivered: DataFrame, source: Source, offset: str) -> DataFrame:
    """The messages with a delay that have not reached its end."""
    done = delivered.where(F.col("source") == source.name.lower()).select("queue", F.col("queue_offset").alias(offset))
    return messages.join(done, ["queue", offset], "left_anti")
