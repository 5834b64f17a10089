"""Lanes of an instance: what goes with a queue that another instance is due to read, or has taken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.support.topic_table import message, table

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.lanes import Handed, Lanes
from commitlake.clients.consumer.rows import Chosen, Rows

ALONE: dict[str, Any] = {
    "members": {"a": 15}, "queues": {str(queue): {"owner": "a", "cursor": None} for queue in (0, 1)},
}  # fmt: skip
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def handed_again(lanes: Lanes) -> Handed:
    """A message of queue 1 whose second attempt is read ahead."""
    rows = Rows(table([message(5, queue=1)]))
    receipt = {"source": "messages", "source_queue": 0, "source_offset": 5, "source_index": 0, "queue_id": 1}
    lanes.note([{**receipt, "state": "RETRY", "attempt": 1, "round": 0, "due_at": LONG_AGO}])
    ((lane, _),) = lanes.due(2_000_000_000_000, 10)
    handed = Handed(lane, Chosen(rows, (0,)), attempt=2)
    assert lanes.hand_again(handed, handed.place())
    return handed


def turn(lanes: Lanes, state: dict[str, Any]) -> dict[str, Any]:
    _, cursors, held = lanes.take()
    after = assignment.turn(state, "a", set(), {0, 1}, held, cursors)
    lanes.follow(after, "a", held & assignment.owned(after, "a").keys())
    return after


def test_a_queue_goes_to_its_due_owner_once_its_retries_are_given_back() -> None:
    lanes = Lanes()
    lanes.follow(ALONE, "a", set())
    handed = handed_again(lanes)
    state = turn(lanes, {**ALONE, "members": {"a": 15, "b": 15}})
    assert state["queues"]["1"]["owner"] == "a", "a message of it is in hand"
    assert lanes.give_back(handed)
    assert turn(lanes, state)["queues"]["1"]["owner"] is None
