"""The identities that hold between the tables at every completed batch; readers rely on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.support.lake import Lake, newest

Rows = list[dict[str, Any]]


def assert_invariants(lake: Lake) -> None:
    """Fails with the first identity that does not hold, at the first batch where it does not."""
    names = ("half", "delayed", "transactions", "deliveries", "discarded", "checks")
    tables = {name: lake.rows(name) for name in names}
    visible = [row | {"topic": topic} for topic in lake.topics() for row in lake.topic(topic)]
    batches = sorted(row["batch_id"] for row in lake.rows("batches"))
    _each_once(batches, "batches")
    _keys_are_unique(tables, visible, set(batches))
    for batch in batches:
        upto = {name: [row for row in rows if row.get("batch_id", -1) <= batch] for name, rows in tables.items()}
        _hold(upto, [row for row in visible if row["batch_id"] is None or row["batch_id"] <= batch], batch)


def _keys_are_unique(tables: dict[str, Rows], visible: Rows, batches: set[int]) -> None:
    _each_once(keys(tables["half"], "queue", "queue_offset"), "half")
    _each_once(keys(tables["delayed"], "queue", "queue_offset"), "delayed")
    _each_once(keys(tables["transactions"], "queue", "half_offset", "round"), "transactions")
    _each_once(keys(tables["deliveries"], "source", "queue", "queue_offset"), "deliveries")
    _each_once(keys(tables["discarded"], "queue", "queue_offset", "round"), "discarded")
    _each_once(keys(tables["checks"], "queue", "half_offset", "round", "check_no"), "checks")
    _each_once(keys(visible, "source", "source_queue", "source_offset", "source_index"), "topic tables")
    written = {
        row["batch_id"] for name in ("transactions", "deliveries", "discarded", "checks") for row in tables[name]
    }
    written |= {row["batch_id"] for row in visible if row["batch_id"] is not None}
    assert written <= batches, "rows of batches that are not complete"


def _hold(tables: dict[str, Rows], visible: Rows, batch: int) -> None:
    ended = newest(tables["transactions"])
    halves = {(row["queue"], row["queue_offset"]): row for row in tables["half"]}
    assert set(ended) <= set(halves), f"batch {batch}: an end of no half message"
    assert all(row["topic"] == halves[at]["topic"] for at, row in ended.items())
    committed = {at: row for at, row in ended.items() if row["state"] == "COMMITTED"}
    delayed = {("messages", row["queue"], row["queue_offset"]) for row in tables["delayed"]}
    delayed |= {("half", *at) for at, row in committed.items() if row["deliver_at"] is not None}
    done = {(row["source"], row["queue"], row["queue_offset"]): row for row in tables["deliveries"]}
    assert set(done) <= delayed, f"batch {batch}: a delivery of nothing delayed"
    at_once = {("half", *at) for at, row in committed.items() if row["deliver_at"] is None}
    delivered = {at for at, row in done.items() if row["state"] == "DELIVERED"}
    decided = [row for row in visible if row["batch_id"] is not None]
    shown = {(row["source"], row["source_queue"], row["source_offset"]) for row in decided}
    assert shown == at_once | delivered, f"batch {batch}: what is visible is not what was committed or delivered"
    discarded = {(*at, row["round"]) for at, row in ended.items() if row["state"] == "DISCARDED"}
    assert discarded <= set(keys(tables["discarded"], "queue", "queue_offset", "round")), f"batch {batch}: not kept"


def keys(rows: Rows, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def _each_once(found: Iterable[object], where: str) -> None:
    twice = [key for key, n in Counter(found).items() if n > 1]
    assert not twice, f"twice in {where}: {twice[:5]}"
