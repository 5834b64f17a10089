"""Counts by topic and state, the topics, and what was rejected."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from commitlake.reading.questions import open as open_transactions
from commitlake.reading.questions.tables import Tables, moment

_ENDED = """
SELECT * EXCLUDE ms, round(ms[1] / 1000, 1) AS p50_s, round(ms[2] / 1000, 1) AS p99_s FROM (
SELECT topic, state, reason, count(*) AS messages,
       quantile_disc(epoch_ms(resolved_at) - epoch_ms(stored_at), [0.5, 0.99]) AS ms
FROM transactions WHERE resolved_at >= {since} GROUP BY ALL)
"""
_PENDING = f"""
SELECT topic, state, reason, count(*) AS messages, round(min({{now}} - epoch_ms(stored_at)) / 1000.0, 1) AS p50_s,
       round(max({{now}} - epoch_ms(stored_at)) / 1000.0, 1) AS p99_s
FROM {open_transactions.VIEW} GROUP BY ALL
"""
_REJECTED = """
SELECT rejected_at, reason, source, kafka_partition, kafka_offset,
       coalesce(try(decode(key)), key::VARCHAR) AS key, detail FROM rejected
WHERE ($reason IS NULL OR reason = $reason) AND rejected_at >= {since}
ORDER BY rejected_at DESC, source, kafka_partition, kafka_offset
"""
"""A key that is no UTF-8 is shown with escapes, such as `\\xFF`."""


def stats(tables: Tables, since_ms: int, now_ms: int) -> pa.Table:
    """Half messages by topic, state and reason that ended since, and first half messages that are pending.

    Returns:
        topic, state, reason, messages, and p50_s and p99_s: seconds from `stored_at` to the end; of what is pending its
        least and its greatest age.
    """
    tables.open("transactions")
    open_transactions.make(tables)
    found = pa.concat_tables(
        [tables.rows(_ENDED.format(since=moment(since_ms))), tables.rows(_PENDING.format(now=now_ms))],
        promote_options="permissive",
    )
    return found.sort_by([("topic", "ascending"), ("state", "ascending"), ("reason", "ascending")])


def topics(tables: Tables) -> pa.Table:
    """The destination topics, by the statistics of their files: messages, files, bytes, and when one came last."""
    tables.open("destinations")
    names = tables.rows("SELECT DISTINCT topic FROM destinations ORDER BY topic")["topic"].to_pylist()
    found = []
    for name in names:
        if tables.topic(name) is not None:
            files = tables.files(f"topics/{name}")
            newest = tables.greatest(f"topics/{name}", "visible_at")
            counts = {"messages": pc.sum(files["num_records"]).as_py(), "bytes": pc.sum(files["size_bytes"]).as_py()}
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
