"""Counts of transactions, of rejected records and of topics; and how late messages became visible.

A message is as late as the time from its op, its own append or its due time until it could be read.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from commitlake.protocol.durations import DAY_MS
from commitlake.reading.questions.tables import Tables, moment
from commitlake.reading.questions.views import make_ended, make_pending

_ENDED = """
SELECT * EXCLUDE ms, round(ms[1] / 1000, 1) AS p50_s, round(ms[2] / 1000, 1) AS p99_s FROM (
SELECT topic, state, reason, count(*) AS messages,
       quantile_disc(epoch_ms(resolved_at) - epoch_ms(stored_at), [0.5, 0.99]) AS ms
FROM ended WHERE resolved_at >= {since} GROUP BY ALL)
"""
_PENDING = """
SELECT topic, state, reason, count(*) AS messages, round(({now} - max(since_ms)) / 1000.0, 1) AS youngest_s,
       round(({now} - min(since_ms)) / 1000.0, 1) AS oldest_s
FROM pending GROUP BY ALL ORDER BY messages DESC, topic
"""
_DISCARDED = """
SELECT producer_group, topic, reason, count(*) AS messages FROM ended
WHERE state = 'DISCARDED' AND resolved_at >= {since} GROUP BY ALL
ORDER BY messages DESC, producer_group, topic, reason
"""
_REASONS = """
SELECT reason, count(*) AS records, max(rejected_at) AS newest FROM rejected
WHERE rejected_at >= {since} GROUP BY ALL ORDER BY records DESC, reason
"""
_REJECTED = """
SELECT rejected_at, reason, source, kafka_partition, kafka_offset,
       coalesce(try(decode(key)), key::VARCHAR) AS key, detail FROM rejected
WHERE ($reason IS NULL OR reason = $reason) AND rejected_at >= {since}
ORDER BY rejected_at DESC, source, kafka_partition, kafka_offset
"""
"""A key that is not UTF-8 is shown with escapes, such as `\\xFF`."""
_LATE = """
SELECT topic, kind, count(*) AS messages, round(quantile_disc(late_ms, 0.5) / 1000, 1) AS p50_s,
       round(quantile_disc(late_ms, 0.99) / 1000, 1) AS p99_s FROM ({rows}) GROUP BY ALL
"""
_LATE_ENDS = """
SELECT t.topic, 'TRANSACTION' AS kind,
       epoch_ms(b.completed_at) - epoch_ms(greatest(o.stored_at, t.stored_at)) AS late_ms
FROM transactions t JOIN batches b USING (batch_id)
JOIN op o ON o.queue = t.op_queue AND o.op_offset = t.op_offset AND o.admin = (t.reason = 'ADMIN')
WHERE t.state = 'COMMITTED' AND t.deliver_at IS NULL AND t.duplicate_of IS NULL AND t.resolved_at >= {since}
UNION ALL
SELECT d.topic, 'DELAYED', epoch_ms(b.completed_at) - epoch_ms(greatest(d.deliver_at, m.stored_at, t.stored_at))
FROM deliveries d JOIN batches b USING (batch_id)
LEFT JOIN delayed m ON d.source = 'messages' AND m.queue = d.queue AND m.queue_offset = d.queue_offset
LEFT JOIN transactions t ON d.source = 'half' AND t.queue = d.queue AND t.half_offset = d.queue_offset
    AND t.state = 'COMMITTED'
WHERE d.state = 'DELIVERED' AND d.resolved_at >= {since}
"""
"""`completed_at` of `batches` is when all rows of the batch could be read."""
_LATE_NORMAL = """
SELECT $topic AS topic, 'NORMAL' AS kind, epoch_ms(visible_at) - epoch_ms(stored_at) AS late_ms
FROM {view} WHERE batch_id IS NULL AND visible_at >= {since}
"""
"""No table says when the rows of a landing could be read: these end at `visible_at`, which is before the commit."""


def stats(tables: Tables, since_ms: int, now_ms: int) -> pa.Table:
    """Counts by topic, state and reason: half messages whose newest round ended since, pending first ones, and rows.

    Returns:
        topic, state, reason, messages, p50_s and p99_s. The last two are seconds from `stored_at` to the end. Of
        pending ones they are the least and the greatest age. Of `VISIBLE`, whose reason is a kind, they are how late
        rows became so (`lateness`).
    """
    make_ended(tables)
    ages = pending(tables, now_ms).rename_columns({"youngest_s": "p50_s", "oldest_s": "p99_s"})
    ends = tables.rows(_ENDED.format(since=moment(since_ms)))
    late = lateness(tables, since_ms, now_ms).rename_columns({"kind": "reason"})
    late = late.append_column("state", pa.array(["VISIBLE"] * late.num_rows, pa.string()))
    found = pa.concat_tables([ends, ages, late.select(ends.column_names)], promote_options="permissive")
    return found.sort_by([("topic", "ascending"), ("state", "ascending"), ("reason", "ascending")])


def pending(tables: Tables, now_ms: int) -> pa.Table:
    """Pending first half messages by topic, the most first: topic, state, reason, messages, youngest_s and oldest_s.

    Their age, in seconds, counts from the newest RESUME.
    """
    make_pending(tables)
    return tables.rows(_PENDING.format(now=now_ms))


def discarded(tables: Tables, since_ms: int) -> pa.Table:
    """Half messages discarded since, and not resumed, the most first: producer_group, topic, reason, messages."""
    make_ended(tables)
    return tables.rows(_DISCARDED.format(since=moment(since_ms)))


def reasons(tables: Tables, since_ms: int) -> pa.Table:
    """Records rejected since, the most first: reason, records, and the time of the newest."""
    tables.open("rejected")
    return tables.rows(_REASONS.format(since=moment(since_ms)))


def topics(tables: Tables) -> pa.Table:
    """The destination topics, by the statistics of their files: messages, bytes, files, and the newest `visible_at`."""
    found = []
    for name, _ in tables.of_topics():
        files = tables.files(f"topics/{name}")
        newest = tables.greatest(f"topics/{name}", "visible_at")
        counts = {"messages": tables.count(f"topics/{name}"), "bytes": pc.sum(files["size_bytes"]).as_py()}
        found.append({"topic": name, **counts, "files": files.num_rows, "newest": newest})
    kinds = [
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("files", pa.int64()),
        ("newest", pa.timestamp("us", "UTC")),
    ]
    return pa.Table.from_pylist(found, pa.schema([("topic", pa.string()), *kinds]))


def rejected(tables: Tables, reason: str | None, since_ms: int) -> pa.Table:
    """Records that changed nothing, the newest first."""
    tables.open("rejected")
    return tables.rows(_REJECTED.format(since=moment(since_ms)), reason=reason)


def lateness(tables: Tables, since_ms: int, now_ms: int) -> pa.Table:
    """How late messages became visible since `since_ms`, but in the last day at most.

    Returns:
        topic, kind (`TRANSACTION`, `DELAYED`, `NORMAL`), messages, p50_s and p99_s, in order of topic and kind.
    """
    tables.open("transactions", "deliveries", "delayed", "op", "batches")
    since = moment(max(since_ms, now_ms - DAY_MS))
    found = [tables.rows(_LATE.format(rows=_LATE_ENDS.format(since=since)))]
    for topic, view in tables.of_topics(("batch_id", "stored_at", "visible_at")):
        found.append(tables.rows(_LATE.format(rows=_LATE_NORMAL.format(view=view, since=since)), topic=topic))
    return pa.concat_tables(found).sort_by([("topic", "ascending"), ("kind", "ascending")])
