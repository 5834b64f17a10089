"""Transactions: lists of them, and the whole history of one."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa

from commitlake.protocol import headers
from commitlake.reading.questions.tables import HAS_KEY, Tables, epoch_ms, iso, moment
from commitlake.reading.questions.views import REOPENED, make_ended, make_pending

PENDING = "PENDING"
STATES = (PENDING, "COMMITTED", "ROLLED_BACK", "DISCARDED")
COLUMNS = (
    *("transaction_id", "producer_group", "topic", "state", "reason", "checks"),
    *("queue", "queue_offset", "stored_at"),
)

DETAILS = ("message_id", "keys", "round")

_KEYED = f"""
SELECT DISTINCT queue_offset FROM half WHERE keys = $keys OR (contains(keys, ' ') AND {HAS_KEY})
"""
_MINUTE_MS = 60_000
_STORED, _BEGUN = "epoch_ms(stored_at)", "since_ms"
"""Begin of a transaction's age; a pending one is as old as its newest RESUME."""
_ENDED = "epoch_ms(resolved_at)"
"""End of the age, for a transaction that has ended."""
_FIRST = """
SELECT e.*, h.tags, h.keys, h.properties
FROM found e JOIN half h ON h.queue = e.queue AND h.queue_offset = e.queue_offset
WHERE h.first_queue = h.queue AND h.first_offset = h.queue_offset
"""
_HALVES = f"""
WITH ends AS (
    SELECT queue, half_offset, max_by(struct_pack(state, reason, checks, round, batch_id, deliver_at), round) AS it
    FROM transactions WHERE transaction_id = $id GROUP BY ALL),
reopened AS ({REOPENED})
SELECT h.queue, h.queue_offset, h.topic, h.message_id, h.producer_group, h.first_queue, h.first_offset, h.stored_at,
       e.it.state AS state, e.it.reason AS reason, e.it.checks AS checks, e.it.round AS round,
       e.it.batch_id AS batch_id, e.it.deliver_at AS deliver_at,
       coalesce(r.round > coalesce(e.it.round, -1), false) AS is_reopened, r.round AS open_round
FROM half h LEFT JOIN ends e ON e.queue = h.queue AND e.half_offset = h.queue_offset
LEFT JOIN reopened r ON r.queue = h.first_queue AND r.queue_offset = h.first_offset
WHERE h.transaction_id = $id
ORDER BY h.queue <> h.first_queue OR h.queue_offset <> h.first_offset, h.stored_at, h.queue, h.queue_offset
"""
_EVENTS = f"""
SELECT "at", what, detail FROM (
SELECT 1 AS step, stored_at AS "at", 'half message' AS what, queue, queue_offset AS place,
       concat_ws(', ', queue || '-' || queue_offset, 'topic ' || topic, 'group ' || producer_group,
                 'message ' || message_id) AS detail
FROM half WHERE transaction_id = $id
UNION ALL SELECT 2, stored_at, decision || ' op', queue, op_offset,
       concat_ws(', ', queue || '-' || op_offset, CASE WHEN "admin" THEN 'by an administrator' END,
                 CASE WHEN from_check THEN 'answers check ' || coalesce(check_id, '') END, remark)
FROM op WHERE transaction_id = $id
UNION ALL SELECT 3, requested_at, 'check ' || check_no, queue, half_offset,
       concat_ws(', ', CASE WHEN repeat > 0 THEN 'sent again' END, CASE WHEN round > 0 THEN 'round ' || round END)
FROM checks WHERE transaction_id = $id
UNION ALL SELECT 4, resolved_at, state, queue, half_offset,
       concat_ws(', ', queue || '-' || half_offset, 'reason ' || reason, 'op ' || op_queue || '-' || op_offset,
                 'due ' || {iso("deliver_at")}, 'not shown, duplicate of ' || duplicate_of, 'batch ' || batch_id)
FROM transactions WHERE transaction_id = $id
UNION ALL SELECT 5, d.resolved_at, d.state, d.queue, d.queue_offset,
       concat_ws(', ', 'was due ' || {iso("d.deliver_at")}, 'duplicate of ' || d.duplicate_of)
FROM deliveries d JOIN half h ON h.queue = d.queue AND h.queue_offset = d.queue_offset
WHERE d.source = 'half' AND h.transaction_id = $id
UNION ALL SELECT 6, rejected_at, 'rejected', kafka_partition, kafka_offset,
       concat_ws(', ', reason, source || ' ' || kafka_partition || '-' || kafka_offset, detail)
FROM rejected WHERE source <> 'messages' AND CASE WHEN source = 'half'
    THEN coalesce(headers['{headers.TRANSACTION_ID}'], headers['{headers.UNIQ_KEY}']) ELSE key END = encode($id)
) ORDER BY "at", step, queue, place
"""
_SHOWN = ("batch_id", "source", "source_offset", "source_queue", "transaction_id", "visible_at")
_VISIBLE = """
SELECT source_queue, source_offset, visible_at, batch_id FROM {view}
WHERE source = 'half' AND source_offset BETWEEN $low AND $high AND transaction_id = $id
"""


@dataclass(frozen=True)
class Wanted:
    """A selection of transactions; a field that is None does not count.

    Attributes:
        states: some of `STATES`.
        group: producer group.
        topic: destination of the first half message.
        reason: why it ended.
        older_than_ms: least time since its first half message was stored; of a pending one also since its last RESUME.
        newer_than_ms: most time since its first half message was stored.
        keys: a business key of the first half message.
        where: an SQL condition on the columns of `half` and `transactions`.
    """

    states: tuple[str, ...] = STATES
    group: str | None = None
    topic: str | None = None
    reason: str | None = None
    older_than_ms: int | None = None
    newer_than_ms: int | None = None
    keys: str | None = None
    where: str | None = None

    def conditions(self, now_ms: int, begin: str = _STORED) -> str:
        """SQL for the columns that pending and ended transactions share; ages count from `begin`, SQL for ms."""
        pairs = (("producer_group", "group"), ("topic", "topic"), ("reason", "reason"))
        found = [f"{column} = ${name}" for column, name in pairs if getattr(self, name) is not None]
        states = ", ".join(f"'{state}'" for state in self.states)
        found.append(f"state IN ({states})")
        if self.older_than_ms is not None:
            until = now_ms - self.older_than_ms
            found.append(f"stored_at <= {moment(until)}")  # skips files
            found.append(f"{begin} <= {until}")
        if self.newer_than_ms is not None:
            found.append(f"stored_at >= {moment(now_ms - self.newer_than_ms)}")
        return " AND ".join(found)

    def more(self) -> str:
        """SQL for the columns of the first half message."""
        found = [] if self.keys is None else [HAS_KEY]
        found += [] if self.where is None else [f"({self.where})"]
        return " AND ".join(found) or "true"

    def parameters(self) -> dict[str, object]:
        """Values of the parameters in `conditions` and `more`."""
        return {"group": self.group, "topic": self.topic, "reason": self.reason, "keys": self.keys}


def found(tables: Tables, wanted: Wanted, now_ms: int, limit: int | None = None) -> pa.Table:
    """Transactions, the newest first: `COLUMNS`, age_ms (at the end, if it has ended), and `DETAILS`.

    Ages of pending ones end at `now_ms`, ms since epoch, UTC.
    """
    parts = []
    if PENDING in wanted.states:
        make_pending(tables)
        conditions = f"{wanted.conditions(now_ms, _BEGUN)} AND {wanted.more()}"
        sql = f"SELECT {_shown(f'{now_ms} - {_BEGUN}')} FROM pending WHERE {conditions}"
        parts.append(tables.rows(sql, **wanted.parameters()))
    if set(wanted.states) != {PENDING}:
        parts.append(_ended(tables, wanted, now_ms, limit))
    rows = pa.concat_tables(parts)
    rows = rows.sort_by([("stored_at", "descending"), ("queue", "ascending"), ("queue_offset", "ascending")])
    return rows if limit is None else rows.slice(0, limit)


def _shown(age: str) -> str:
    return f"{', '.join(COLUMNS)}, {age} AS age_ms, {', '.join(DETAILS)}"


def _ended(tables: Tables, wanted: Wanted, now_ms: int, limit: int | None) -> pa.Table:
    """Finds candidates in the narrow ledger, then the first half messages among them."""
    tables.open("half")
    make_ended(tables)
    conditions = wanted.conditions(now_ms)
    begins = ["true"] if limit is None else _begins(tables)
    if wanted.keys is not None:
        begins = [_keyed(tables, wanted.keys)]
    for begin in begins:
        tables.make("found", f"SELECT * FROM ended WHERE {conditions} AND {begin}", **wanted.parameters())
        sql = f"SELECT {_shown(f'{_ENDED} - {_STORED}')} FROM ({_FIRST}) WHERE {wanted.more()}"
        rows = tables.rows(sql, **wanted.parameters())
        if limit is not None and rows.num_rows >= limit:
            break
    return rows


def _keyed(tables: Tables, keys: str) -> str:
    """A condition that skips nearly all files; `more` compares the keys of the rows that are left."""
    offsets = tables.rows(_KEYED, keys=keys)["queue_offset"].to_pylist()
    return f"queue_offset IN ({', '.join(map(str, offsets))})" if offsets else "false"


def _begins(tables: Tables) -> list[str]:
    """Conditions that reach further and further back: the newest few of millions are in the last minutes."""
    newest = tables.greatest("transactions", "stored_at")
    reach = [] if newest is None else [epoch_ms(newest) - _MINUTE_MS * 10**power for power in range(5)]
    return [*(f"stored_at >= {moment(begin)}" for begin in reach), "true"]


def history(tables: Tables, transaction_id: str) -> dict[str, Any] | None:
    """The history of a transaction; None when nothing is known of the id.

    The message id of one of its half messages names it, too: of several transactions the newest.

    Returns:
        transaction_id, producer_group, state, reason, checks and round of the first half message; half_messages, each
        with queue, queue_offset, topic, message_id, state, visible, batch_id; events, each with at, what, detail. Times
        are aware datetimes, UTC.
    """
    tables.open("half", "op", "checks", "transactions", "deliveries", "rejected", "reentries")
    halves = tables.rows(_HALVES, id=transaction_id).to_pylist()
    if not halves:
        # A query of its own: with OR no Bloom filter is used. A message that was sent again has several transactions.
        newest = "SELECT transaction_id FROM half WHERE message_id = $id ORDER BY stored_at DESC LIMIT 1"
        named = tables.rows(newest, id=transaction_id)
        if named.num_rows:
            return history(tables, named["transaction_id"][0].as_py())
    events = tables.rows(_EVENTS, id=transaction_id).to_pylist()
    if not halves and not events:
        return None
    visible = _visible(tables, transaction_id, halves)
    events += [{"at": row["visible_at"], "what": "visible", "detail": _seen(row)} for row in visible.values()]
    first = halves[0] if halves else {}
    is_open = bool(first) and (first["state"] is None or first["is_reopened"])
    round_ = (first.get("open_round") if first.get("is_reopened") else first.get("round")) or 0
    return {
        "transaction_id": transaction_id,
        "producer_group": first.get("producer_group"),
        "state": PENDING if is_open else first.get("state"),
        "reason": None if is_open else first.get("reason"),
        "checks": _checks(tables, first, round_) if is_open else first.get("checks"),
        "round": round_,
        "half_messages": [_half(row, visible.get((row["queue"], row["queue_offset"]))) for row in halves],
        "events": sorted(events, key=itemgetter("at")),
    }


def _half(row: dict[str, Any], visible: dict[str, Any] | None) -> dict[str, Any]:
    is_open = row["state"] is None or row["is_reopened"]
    return {
        **{name: row[name] for name in ("queue", "queue_offset", "topic", "message_id")},
        "state": PENDING if is_open else row["state"],
        "visible": visible is not None,
        "batch_id": visible["batch_id"] if visible else row["batch_id"],
    }


def _checks(tables: Tables, first: dict[str, Any], round_: int) -> int:
    sql = """SELECT coalesce(max(check_no), 0) AS sent FROM checks
             WHERE queue = $queue AND half_offset = $place AND round = $round"""
    found = tables.rows(sql, queue=first["queue"], place=first["queue_offset"], round=round_)
    return int(found["sent"][0].as_py())


def _visible(
    tables: Tables, transaction_id: str, halves: list[dict[str, Any]]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Rows of topic tables, by the place of their half message."""
    found = {}
    for topic in {row["topic"] for row in halves}:
        offsets = [row["queue_offset"] for row in halves if row["topic"] == topic]
        view = tables.topic(topic, _SHOWN)
        if view is not None:
            sql = _VISIBLE.format(view=view)
            for row in tables.rows(sql, id=transaction_id, low=min(offsets), high=max(offsets)).to_pylist():
                found[row["source_queue"], row["source_offset"]] = row
    return found


def _seen(row: dict[str, Any]) -> str:
    return f"{row['source_queue']}-{row['source_offset']}, batch {row['batch_id']}"
