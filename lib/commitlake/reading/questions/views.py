"""Views of transactions, for other questions: `pending` and `ended`.

`pending` has the first half messages without an end in their newest round. The coordinator saves the open rows every
two minutes (`open_rows`), so only messages that landed since are searched. `ended` has the half messages that have
ended, by their newest round, without those that a RESUME has reopened since. A RESUME opens a round, and each round
that ends has a row in `transactions`.
"""

from __future__ import annotations

from commitlake.protocol.states import Kind
from commitlake.reading.questions.tables import Tables

REOPENED = f"""
    SELECT queue, "offset" AS queue_offset, max(round) AS round, max(since) AS since FROM reentries
    WHERE kind = {int(Kind.HALF)} AND round > 0 GROUP BY ALL"""
"""First half messages that a RESUME has reopened, with their newest round and its begin."""

_SAVED = f"""
SELECT max(landing_id) AS landing_id FROM open_rows WHERE kind = {int(Kind.HEAD)}
HAVING count(*) > 0
"""
_FLOORS = """
SELECT o."partition" AS queue, o.next AS next FROM (
    SELECT unnest(offsets) AS o FROM positions WHERE landing_id = $landing_id) WHERE o.source = 'half'
"""
_CANDIDATES = """
SELECT queue, queue_offset FROM half WHERE queue = first_queue AND queue_offset = first_offset AND {since}
UNION SELECT queue, "offset" FROM open_rows WHERE {is_saved} AND kind = {half}
UNION SELECT queue, "offset" FROM reentries WHERE kind = {half} AND round > 0
"""
_PENDING = f"""
CREATE OR REPLACE TEMP VIEW pending AS
WITH reopened AS ({REOPENED}),
ended AS (
    SELECT t.queue, t.half_offset AS queue_offset, max(t.round) AS round FROM transactions t
    SEMI JOIN candidates c ON t.queue = c.queue AND t.half_offset = c.queue_offset GROUP BY ALL),
open_now AS (
    SELECT c.queue, c.queue_offset, coalesce(r.round, 0) AS round, r.since FROM candidates c
    LEFT JOIN reopened r USING (queue, queue_offset) LEFT JOIN ended e USING (queue, queue_offset)
    WHERE e.round IS NULL OR r.round > e.round)
SELECT h.transaction_id, h.producer_group, h.topic, 'PENDING' AS state, NULL::VARCHAR AS reason,
       coalesce(k.sent, 0)::INTEGER AS checks, o.round::INTEGER AS round, h.queue, h.queue_offset, h.message_id,
       h.tags, h.keys, h.properties, h.stored_at, NULL::TIMESTAMPTZ AS resolved_at, k.last_check_at,
       coalesce(o.since, epoch_ms(h.stored_at)) AS since_ms
FROM half h JOIN open_now o ON h.queue = o.queue AND h.queue_offset = o.queue_offset
LEFT JOIN (SELECT queue, half_offset, round, max(check_no) AS sent, max(requested_at) AS last_check_at
           FROM checks GROUP BY ALL) k
  ON k.queue = o.queue AND k.half_offset = o.queue_offset AND k.round = o.round
"""
# These few rows are a table of their own: beside 20 million rows DuckDB estimates that they are many.
_LATER = f"""
SELECT queue, half_offset, round FROM transactions WHERE round > 0
UNION SELECT queue, "offset", round FROM reentries WHERE kind = {int(Kind.HALF)} AND round > 0
UNION SELECT part_queue, part_offset, round FROM reentries WHERE kind = {int(Kind.PART)} AND round > 0
"""
_ENDED = """
CREATE OR REPLACE TEMP VIEW ended AS
SELECT t.transaction_id, t.producer_group, t.topic, t.state, t.reason, t.checks, t.round, t.queue,
       t.half_offset AS queue_offset, t.message_id, t.stored_at, t.resolved_at
FROM transactions t
WHERE NOT EXISTS (SELECT 1 FROM later l
                  WHERE l.queue = t.queue AND l.half_offset = t.half_offset AND l.round > t.round)
"""


def make_pending(tables: Tables) -> None:
    """Make the view `pending`; its `since_ms` is the newest RESUME, or when the half message was stored."""
    tables.open("half", "transactions", "checks", "reentries", "open_rows", "positions")
    since, is_saved = _landed_since(tables)
    tables.make("candidates", _CANDIDATES.format(since=since, is_saved=is_saved, half=int(Kind.HALF)))
    tables.db.execute(_PENDING)


def _landed_since(tables: Tables) -> tuple[str, str]:
    """Two SQL conditions: a half message landed after the rows were saved; the saved rows count."""
    saved = tables.rows(_SAVED).to_pylist()
    floors = tables.rows(_FLOORS, landing_id=saved[0]["landing_id"]).to_pylist() if saved else []
    if not floors:
        return "true", "false"
    each = [f"(queue = {row['queue']} AND queue_offset >= {row['next']})" for row in floors]
    others = f"queue NOT IN ({', '.join(str(row['queue']) for row in floors)})"
    return f"({' OR '.join([*each, others])})", "true"


def make_ended(tables: Tables) -> None:
    """Make the view `ended`."""
    tables.open("transactions", "reentries")
    tables.make("later", _LATER)
    tables.db.execute(_ENDED)
