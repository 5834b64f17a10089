"""Lanes of an instance: what goes with a queue that another instance is due to read, or has taken."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.consumers import consumer
from tests.support.topic_table import message, table, write

from commitlake.clients.consumer import assignment, group_member
from commitlake.clients.consumer.group import Group, kept_receipts
from commitlake.clients.consumer.lanes import InFlight, Lanes
from commitlake.clients.consumer.receipts import Attempt
from commitlake.clients.consumer.rows import Chosen, Rows

ALONE: dict[str, Any] = {
    "members": {"a": 15}, "queues": {str(queue): {"owner": "a", "cursor": None} for queue in (0, 1)},
}  # fmt: skip
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def handed_again(lanes: Lanes) -> InFlight:
    """A message of queue 1 whose second attempt is read ahead."""
    rows = Rows(table([message(5, queue=1)]))
    receipt = {"source": "messages", "source_queue": 0, "source_offset": 5, "source_index": 0, "queue_id": 1}
    lanes.note([{**receipt, "state": "RETRY", "attempt": 1, "round": 0, "due_at": LONG_AGO}])
    ((lane, _),) = lanes.due(2_000_000_000_000, 10)
    handed = InFlight(lane, Chosen(rows, (0,)), attempt=2)
    assert lanes.hand_again(handed, handed.place())
    return handed


def turn(lanes: Lanes, state: dict[str, Any]) -> dict[str, Any]:
    _, cursors, held, _ = lanes.take()
    after = assignment.rebalance(state, "a", set(), {0, 1}, held, cursors)
    lanes.follow(after, "a", held & assignment.owned(after, "a").keys())
    return after


def test_a_queue_goes_to_its_due_owner_once_its_retries_are_released() -> None:
    lanes = Lanes()
    lanes.follow(ALONE, "a", set())
    handed = handed_again(lanes)
    state = turn(lanes, {**ALONE, "members": {"a": 15, "b": 15}})
    assert state["queues"]["1"]["owner"] == "a", "a message of it is in hand"
    assert lanes.release(handed)
    assert turn(lanes, state)["queues"]["1"]["owner"] is None


def test_a_message_of_a_queue_that_was_lost_is_not_put_off() -> None:
    """Another instance hands it over, so a RETRY could stand over its DONE; what is done here is done all the same."""
    lanes, rows = Lanes(), Rows(table([message(n) for n in range(2)]))
    lanes.follow(ALONE, "a", set())
    first, second = (InFlight(lanes.reading()[0], Chosen(rows, (n,))) for n in range(2))
    assert lanes.hand_over(first)
    assert lanes.hand_over(second)
    lanes.follow({"members": {"a": 15, "b": 15}, "queues": {"0": {"owner": "b", "cursor": None}}}, "a", set())
    lanes.finish(first, Attempt("RETRY", 1, 0, 1, None, 1))
    lanes.finish(second, Attempt("DONE", 1, 0, None, None, 1))
    receipts = lanes.take().receipts
    assert [each.outcome.state for each in receipts] == ["DONE"]
    assert (lanes.open, lanes.unwritten) == (0, 1)


def test_what_stood_still_while_another_instance_took_its_queue_puts_no_message_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has it, and may have done it: a RETRY of the same attempt would bring it once more."""
    write(tmp_path / "w", "orders", [message(0)])
    with consumer(tmp_path / "w") as messages:
        first = next(messages)
        monkeypatch.setattr(group_member.GroupMember, "is_late", lambda _: True)
        group = Group(f"{tmp_path / 'w'}_receipts", "points", "orders")
        state = group.read()
        assert state is not None
        (me,) = state["members"]
        group.change(lambda _: assignment.leave(state, me, {}))
        first.retry("1ms")
    assert kept_receipts(f"{tmp_path / 'w'}_receipts", "points", "orders").waiting() == []
