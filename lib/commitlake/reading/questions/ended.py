"""Half messages that have ended, by their newest round, without those that a RESUME has reopened since.

A RESUME opens a round, and each round that ends has a row in `transactions`.
"""

from __future__ import annotations

from commitlake.protocol.states import Kind
from commitlake.reading.questions.tables import Tables

VIEW = "ended"
# These few rows are a table of their own: beside 20 million rows DuckDB estimates that they are many.
_LATER = f"""
SELECT queue, half_offset, round FROM transactions WHERE round > 0
UNION SELECT queue, "offset", round FROM reentries WHERE kind = {int(Kind.HALF)} AND round > 0
UNION SELECT part_queue, part_offset, round FROM reentries WHERE kind = {int(Kind.PART)} AND round > 0
"""
_ENDED = f"""
CREATE OR REPLACE TEMP VIEW {VIEW} AS
SELECT t.transaction_id, t.producer_group, t.topic, t.state, t.reason, t.checks, t.round, t.queue,
       t.half_offset AS queue_offset, t.message_id, t.stored_at, t.resolved_at
FROM transactions t
WHERE NOT EXISTS (SELECT 1 FROM later l
                  WHERE l.queue = t.queue AND l.half_offset = t.half_offset AND l.round > t.round)
"""


def make(tables: Tables) -> None:
    """Make the view `ended`."""
    tables.open("transactions", "reentries")
    tables.make("later", _LATER)
    tables.db.execute(_ENDED)
