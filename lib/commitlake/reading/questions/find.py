"""All rows with a business key: transactions, delayed messages, rows of topics, rejects and receipts."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from commitlake.errors import NoTableError
from commitlake.protocol import headers
from commitlake.reading.questions.tables import HAS_KEY, Tables, iso
from commitlake.reading.questions.views import make_ended

COLUMNS = ("at", "what", "state", "topic", "message_id", "transaction_id", "place", "detail")
_IS = f"(keys = $keys OR (contains(keys, ' ') AND {HAS_KEY}))"
"""Whether a row has the key; the first part lets Bloom filters skip files."""
_HALVES = f"SELECT * FROM half WHERE {_IS}"
_TWICE = "'not shown, duplicate of '"
_OF_HALVES = f"""
SELECT k.stored_at AS "at", 'transaction' AS what, coalesce(e.state, 'PENDING') AS state, k.topic, k.message_id,
       k.transaction_id, 'half-' || k.queue || '-' || k.queue_offset AS place,
       concat_ws(', ', 'group ' || k.producer_group, 'reason ' || e.reason, {_TWICE} || t.duplicate_of) AS detail
FROM keyed k LEFT JOIN ended e ON e.queue = k.queue AND e.queue_offset = k.queue_offset
LEFT JOIN (SELECT queue, half_offset, round, duplicate_of FROM transactions WHERE duplicate_of IS NOT NULL) t
  ON t.queue = e.queue AND t.half_offset = e.queue_offset AND t.round = e.round
UNION ALL SELECT d.resolved_at, 'delivery', d.state, d.topic, d.message_id, k.transaction_id,
       'half-' || d.queue || '-' || d.queue_offset, {_TWICE} || d.duplicate_of
FROM deliveries d JOIN keyed k ON d.source = 'half' AND d.queue = k.queue AND d.queue_offset = k.queue_offset
"""
_DELAYED = f"""
SELECT m.stored_at AS "at", 'delayed' AS what, coalesce(d.state, 'WAITING') AS state, m.topic, m.message_id,
       NULL::VARCHAR AS transaction_id, 'messages-' || m.queue || '-' || m.queue_offset AS place,
       concat_ws(', ', 'due ' || {iso("m.deliver_at")}, {_TWICE} || d.duplicate_of) AS detail
FROM (SELECT * FROM delayed WHERE {_IS}) m LEFT JOIN deliveries d
  ON d.source = 'messages' AND d.queue = m.queue AND d.queue_offset = m.queue_offset
"""
_HEAD = f"value[1:try(decode(headers['{headers.BATCH_HEAD}'])::INTEGER)]"
_BATCH = f"try(decode(CASE WHEN headers['{headers.BATCH_HEAD}'] IS NULL THEN value ELSE {_HEAD} END))"
_OF_BATCH = f"""
nullif(array_to_string(list_concat(try({_BATCH} ->> '$.properties[*].{headers.KEYS}'),
                                   try({_BATCH} ->> '$.messages[*].properties.{headers.KEYS}')), ' '), '')
"""
"""Keys of the members, in either form of a batch."""
_REJECTED = f"""
SELECT rejected_at AS "at", 'rejected' AS what, reason AS state,
       try(decode(headers['{headers.REAL_TOPIC}'])) AS topic, try(decode(headers['{headers.UNIQ_KEY}'])) AS message_id,
       try(decode(headers['{headers.TRANSACTION_ID}'])) AS transaction_id,
       concat_ws('-', source, kafka_partition, kafka_offset) AS place, detail
FROM (SELECT *, CASE WHEN headers['{headers.BATCH}'] IS NULL THEN try(decode(headers['{headers.KEYS}']))
                  ELSE {_OF_BATCH} END AS keys FROM rejected) WHERE {_IS}
"""
_SHOWN = (
    "keys",
    "message_id",
    "source",
    "source_index",
    "source_offset",
    "source_queue",
    "transaction_id",
    "visible_at",
)
_VISIBLE = f"""
SELECT visible_at AS "at", 'visible' AS what, NULL::VARCHAR AS state, $topic AS topic, message_id, transaction_id,
       concat_ws('-', source, source_queue, source_offset, source_index) AS place, NULL::VARCHAR AS detail
FROM {{view}} WHERE {_IS}
"""
_RECEIPTS = f"""
SELECT "at", 'receipt' AS what, state, topic, message_id, transaction_id,
       concat_ws('-', source, source_queue, source_offset, source_index) AS place,
       concat_ws(', ', 'group ' || consumer_group, 'attempt ' || attempt, remark) AS detail
FROM {{view}} WHERE {_IS}
"""


def find(tables: Tables, receipts: str, keys: str) -> pa.Table:
    """All rows with a business key, in time order: `COLUMNS`. The table of receipts need not be there.

    Raises:
        NoTableError: no coordinator has run there.
    """
    tables.open("half", "delayed", "deliveries", "rejected")
    make_ended(tables)
    tables.make("keyed", _HALVES, keys=keys)
    parts = [tables.rows(sql, keys=keys) for sql in (_OF_HALVES, _DELAYED, _REJECTED)]
    for topic, view in tables.of_topics(_SHOWN):
        parts.append(tables.rows(_VISIBLE.format(view=view), keys=keys, topic=topic))
    with suppress(NoTableError):  # no consumer has run
        parts.append(tables.rows(_RECEIPTS.format(view=tables.outside(receipts)), keys=keys))
    return pa.concat_tables(parts, promote_options="permissive").sort_by([("at", "ascending"), ("place", "ascending")])
