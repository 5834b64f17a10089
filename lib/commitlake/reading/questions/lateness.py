"""How late messages became visible: from the op, the own append or the due time until they could be read."""

from __future__ import annotations

import pyarrow as pa

from commitlake.protocol.durations import DAY_MS
from commitlake.reading.questions.tables import Tables, moment

_FROM = """
SELECT topic, kind, count(*) AS messages, round(quantile_disc(late_ms, 0.5) / 1000, 1) AS p50_s,
       round(quantile_disc(late_ms, 0.99) / 1000, 1) AS p99_s FROM ({rows}) GROUP BY ALL
"""
_LEDGER = """
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
_NORMAL = """
SELECT $topic AS topic, 'NORMAL' AS kind, epoch_ms(visible_at) - epoch_ms(stored_at) AS late_ms
FROM {view} WHERE batch_id IS NULL AND visible_at >= {since}
"""
"""No table says when the rows of a landing could be read: these end at `visible_at`, which is before the commit."""


def lateness(tables: Tables, since_ms: int, now_ms: int) -> pa.Table:
    """How late messages became visible since `since_ms`, but in the last day at most.

    Returns:
        topic, kind (`TRANSACTION`, `DELAYED`, `NORMAL`), messages, p50_s and p99_s, in order of topic and kind.
    """
    tables.open("transactions", "deliveries", "delayed", "op", "batches")
    since = moment(max(since_ms, now_ms - DAY_MS))
    found = [tables.rows(_FROM.format(rows=_LEDGER.format(since=since)))]
    for topic, view in tables.of_topics(("batch_id", "stored_at", "visible_at")):
        found.append(tables.rows(_FROM.format(rows=_NORMAL.format(view=view, since=since)), topic=topic))
    return pa.concat_tables(found).sort_by([("topic", "ascending"), ("kind", "ascending")])
