"""The figures of the page, read from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commitlake.reading.questions import overview
from commitlake.reading.questions.tables import Tables, moment
from commitlake.reading.questions.views import make_ended, make_pending

BUCKETS = 48
STATES = ("COMMITTED", "ROLLED_BACK", "DISCARDED")
_OLDEST, _MOST_DISCARDS = 15, 20

_BUCKET = "least(greatest((epoch_ms({column}) - {since}) // {width}, 0), {last})::INTEGER"
_ENDED = """
SELECT {bucket} AS bucket, state, count(*) AS n FROM ended WHERE {recent} GROUP BY ALL
"""
_COMMITTED = """(
SELECT *, (epoch_ms(completed_at) - epoch_ms(stored_at)) / 1000 AS took_s
FROM transactions JOIN batches USING (batch_id) WHERE state = 'COMMITTED' AND {recent})
"""
"""With the time to the end of their batch's appends, when a message without a delay could be read."""
_LATENCY = f"""
SELECT {{bucket}} AS bucket, checks > 0 AS is_checked, quantile_cont(took_s, 0.5) AS p50,
       quantile_cont(took_s, 0.99) AS p99 FROM {_COMMITTED} GROUP BY ALL
"""
_AGES = """
SELECT CASE WHEN age < 60 THEN 0 WHEN age < 600 THEN 1 WHEN age < 3600 THEN 2 WHEN age < 86400 THEN 3 ELSE 4
       END AS step, count(*) AS n
FROM (SELECT ({now} - since_ms) / 1000 AS age FROM pending) GROUP BY ALL
"""
AGES = ("below 1 min", "1 to 10 min", "10 to 60 min", "1 h to 1 d", "above 1 d")
_CHECKS = """
SELECT count(*) FILTER (c.repeat = 0) AS sent, count(*) FILTER (c.repeat > 0) AS repeated,
       count(a.answered_at) FILTER (c.repeat = 0) AS answered,
       quantile_cont(epoch_ms(a.answered_at) - epoch_ms(c.requested_at), 0.5) FILTER (c.repeat = 0) / 1000 AS p50_s,
       quantile_cont(epoch_ms(a.answered_at) - epoch_ms(c.requested_at), 0.99) FILTER (c.repeat = 0) / 1000 AS p99_s
FROM checks c LEFT JOIN (
    SELECT check_id, min(stored_at) AS answered_at FROM op WHERE check_id IS NOT NULL GROUP BY ALL) a
  ON a.check_id = concat_ws('-', c.queue, c.half_offset, c.round, c.check_no)
WHERE c.requested_at >= {begin}
"""
_SLOWEST = f"""
SELECT producer_group, count(*) AS committed, round(quantile_cont(took_s, 0.5), 1) AS p50_s,
       round(quantile_cont(took_s, 0.99), 1) AS p99_s
FROM {_COMMITTED} GROUP BY ALL ORDER BY p99_s DESC, producer_group LIMIT 10
"""
_OPEN = f"""
SELECT transaction_id, producer_group, topic, checks, stored_at, ({{now}} - since_ms) / 1000 AS age_s
FROM pending ORDER BY since_ms, queue, queue_offset LIMIT {_OLDEST}
"""


@dataclass(frozen=True)
class Figures:
    """All figures of the page. Times are ms since epoch, UTC, or UTC without a zone.

    Attributes:
        since: the begin.
        now: the end.
        ended: by state, how many half messages ended their newest round in each of `BUCKETS` equal parts of the time.
        at_once: seconds from a half message to its commit in each part, of transactions without a check: p50 and p99,
            None where none was committed.
        checked: the same of transactions that were checked.
        ages: pending transactions by age, as `AGES`.
        checks: sent, repeated, answered, p50_s, p99_s.
        discards: rows of producer_group, topic, reason, messages.
        rejects: rows of reason, records, newest.
        late: rows of topic, kind, messages, p50_s, p99_s: the latest topics, as `lateness` has them.
        slowest: rows of producer_group, committed, p50_s, p99_s.
        oldest: rows of transaction_id, producer_group, topic, checks, stored_at, age_s.
    """

    since: int
    now: int
    ended: Mapping[str, list[int]]
    at_once: Mapping[str, list[float | None]]
    checked: Mapping[str, list[float | None]]
    ages: list[int]
    checks: Mapping[str, Any]
    discards: list[dict[str, Any]]
    rejects: list[dict[str, Any]]
    late: list[dict[str, Any]]
    slowest: list[dict[str, Any]]
    oldest: list[dict[str, Any]]

    def total(self, state: str) -> int:
        """How many half messages ended in `state`."""
        return sum(self.ended[state])


def read(tables: Tables, since: int, now: int) -> Figures:
    """Read all figures of the time from `since` to `now`, both ms since epoch, UTC."""
    tables.open("transactions", "batches", "checks", "op")
    make_pending(tables)
    make_ended(tables)
    width = max(1, (now - since) // BUCKETS)
    bucket = _BUCKET.format(column="resolved_at", since=since, width=width, last=BUCKETS - 1)
    recent = f"resolved_at >= {moment(since)}"

    def rows(sql: str) -> list[dict[str, Any]]:
        return list(tables.rows(sql.format(bucket=bucket, recent=recent, begin=moment(since), now=now)).to_pylist())

    ended = {state: [0] * BUCKETS for state in STATES}
    for row in rows(_ENDED):
        ended[row["state"]][row["bucket"]] = row["n"]
    latency = {(row["is_checked"], row["bucket"]): row for row in rows(_LATENCY)}

    def took(is_checked: bool) -> Mapping[str, list[float | None]]:
        found = [latency.get((is_checked, number), {}) for number in range(BUCKETS)]
        return {name: [row.get(name) for row in found] for name in ("p50", "p99")}

    ages = {row["step"]: row["n"] for row in rows(_AGES)}
    return Figures(
        since=since,
        now=now,
        ended=ended,
        at_once=took(False),
        checked=took(True),
        ages=[ages.get(step, 0) for step in range(len(AGES))],
        checks=rows(_CHECKS)[0],
        discards=overview.discarded(tables, since).slice(0, _MOST_DISCARDS).to_pylist(),
        rejects=overview.reasons(tables, since).to_pylist(),
        late=overview.lateness(tables, since, now).sort_by([("p99_s", "descending")]).slice(0, _OLDEST).to_pylist(),
        slowest=rows(_SLOWEST),
        oldest=rows(_OPEN),
    )
