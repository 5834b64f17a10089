"""Transactions: lists of them, and the whole history of one."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from commitlake.reading.questions.tables import HAS_KEY, Tables, epoch_ms, moment
from commitlake.reading.questions.views import make_ended, make_pending

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
