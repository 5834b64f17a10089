"""The checks of open half messages: which one is out, and when something is due (contract 4.3)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake.config import TransactionConfig
from commitlake.coordinator.coordination.input_rows import INPUT_SCHEMA, IS_ANSWER, op_rows, rows
from commitlake.coordinator.recovery.snapshot import Between
from commitlake.protocol.statemachine.deadlines import LONGEST_PAUSE_MS
from commitlake.protocol.states import Kind


def with_checks(halves: DataFrame, look: Between, timing: TransactionConfig) -> DataFrame:
    """Brings the checks of half messages up to date; an answer counts as in `statemachine.answers`.

    Args:
        halves: open half messages, rows of `INPUT_SCHEMA`, with their checks as of `look.since`.
        look: the range of the tables to read.
        timing: the timings.
    """
    first = f"kind = {int(Kind.HALF)}"
    same_round = f"{first} AND c_queue = queue AND c_offset = offset AND c_round = round"
    asked = halves.join(_newest_checks(look), F.expr(same_round), "left")
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
    return rows(found, **{name: name for name in INPUT_SCHEMA.names} | changed)


def _newest_checks(look: Between) -> DataFrame:
    """The newest check of each round."""
    each = look.written("checks").selectExpr(
        *("queue AS c_queue", "half_offset AS c_offset", "round AS c_round"),
        "struct(check_no, coalesce(repeat, 0) AS repeat, requested_at) AS asked",  # version 0.1 repeated none
    )
    return each.groupBy("c_queue", "c_offset", "c_round").agg(F.max("asked").alias("last"))


def _answers(look: Between) -> DataFrame:
    """The answers that the outcome is still unknown, by half message, id and group."""
    answers = op_rows(look.landed("op", "queue", "op_offset", op=IS_ANSWER))
    place = [f"{name} AS a_{name}" for name in ("queue", "offset", "tid", "grp")]
    each = answers.selectExpr(*place, "struct(checks, round, stored) AS answer")
    return each.groupBy("a_queue", "a_offset", "a_tid", "a_grp").agg(F.collect_list("answer").alias("given"))


def _pause(repeat: str, timing: TransactionConfig) -> str:
    """SQL of `deadlines.pause_before_repeat`, in ms."""
    longest = max(LONGEST_PAUSE_MS, timing.check_repeat_ms)
    return f"CAST(least({timing.check_repeat_ms} * pow(2, least({repeat}, 40)), {longest}) AS BIGINT)"
