"""The thread that works for all groups of a process, and lanes of an instance: what ends them or goes with a queue."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.polling import wait_for
from tests.support.topic_table import consumer, message, rest, table, write

from commitlake.clients.consumer import assignment, group_member
from commitlake.clients.consumer.clerk import Clerk
from commitlake.clients.consumer.group import Group, kept_receipts, kept_state
from commitlake.clients.consumer.group_member import GroupMember
from commitlake.clients.consumer.lanes import InFlight, Lanes
from commitlake.clients.consumer.receipts import Attempt, Receipts
from commitlake.clients.consumer.rows import Chosen, Rows
from commitlake.clients.consumer.tables import Appender
from commitlake.errors import ConsumerError
from commitlake.spark.process import Stop


def test_what_ends_the_thread_is_told_by_each_group(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = consumer(warehouse, group="a"), consumer(warehouse, group="b")
    next(first).done()
    with monkeypatch.context() as patch:
        patch.setattr(Clerk, "_start_syncs", fails(MemoryError("no memory")))
        next(second).done()
        wait_for(first._subscriptions[0]._member.closed.is_set)
    for each in (first, second):
        with pytest.raises(ConsumerError, match="no memory"):
            each.close()
    with consumer(warehouse, group="c", follow=False) as messages:  # another thread works for it
        assert len([each for each in messages if each.done() is None]) == 40
    assert rest(warehouse, group="c") == []


def test_a_thread_that_can_not_be_started_is_started_with_the_next_group(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="new thread"):
            next(consumer(warehouse, lease="1s"))
    assert len(rest(warehouse, lease="1s")) == 40
    assert rest(warehouse, lease="1s") == []


def fails(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise error

    return call


@pytest.mark.parametrize("step", ["_write", "_sync"])
def test_a_consumer_that_garbage_collection_closes_in_the_thread_stalls_no_group(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    held, other = consumer(warehouse, group="a"), consumer(warehouse, group="b")
    next(held).done()
    mine, before, closed = held._subscriptions[0]._member, getattr(Clerk, step), threading.Event()

    def close_first(self: Clerk, *given: Any) -> None:
        if step == "_write" or given[0] is mine:
            held.close()
            closed.set()
        before(self, *given)

    monkeypatch.setattr(Clerk, step, close_first)
    wait_for(closed.is_set)
    with other:
        next(other).done()
    assert len(rest(warehouse, group="b")) == 39
    wait_for(mine.closed.is_set)
    assert len(rest(warehouse, group="a")) == 39


def test_receipts_that_can_not_be_made_are_no_clean_end(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "_PATIENCE_S", 0.1)
    messages = consumer(warehouse)
    next(messages).done()
    with monkeypatch.context() as patch:
        for module in ("clerk", "group_member"):
            patch.setattr(f"commitlake.clients.consumer.{module}.table_of", fails(pa.ArrowInvalid("no rows")))
        with pytest.raises(ConsumerError, match="no rows"):
            messages.close()
    assert len(rest(warehouse)) == 40


def test_rows_that_no_table_takes_hold_up_no_other_group(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "_PATIENCE_S", 0.1)
    bad, good = consumer(warehouse, group="a"), consumer(warehouse, group="b")
    found = [next(bad), next(good)]
    found[0].handed.attempt = "no number"
    with good:
        for each in found:
            each.done()
        wait_for(lambda: good._subscriptions[0]._member.lanes.unwritten == 0)
        with pytest.raises(ConsumerError, match="no number"):
            bad.close()
    assert len(rest(warehouse, group="b")) == 39


@pytest.fixture
def member(warehouse: Path) -> GroupMember:
    """It reads queues 0 and 1, and has no clerk: a test says when receipts are written and members sync."""
    place = f"{warehouse}_receipts"
    kept, first = Receipts(f"{place}/receipts", "points", "orders"), {"members": {}, "queues": {}, "table": "t"}
    group = Group(place, "points", "orders")
    return GroupMember(group, kept, "a", 60, first, {0, 1}, Lanes(), True, 0)


def hand_over(member: GroupMember, offset: int) -> InFlight:
    handed = InFlight(member.lanes.reading()[1], Chosen(Rows(table([message(offset, queue=1)])), (0,)))
    assert member.lanes.hand_over(handed)
    return handed


def write_receipts(member: GroupMember) -> None:
    if taken := member.take():
        member.written(taken)


def sync_while_it_is_written(member: GroupMember, *written: Any) -> None:
    before, thread = member.lanes.changes, threading.Thread(target=member.sync)
    thread.start()
    wait_for(lambda: member.lanes.changes > before)
    member.written(*written)
    thread.join()


def test_a_queue_goes_to_another_instance_with_the_cursor_behind_what_is_written(
    warehouse: Path, member: GroupMember
) -> None:
    handed = hand_over(member, 5)
    place = f"{warehouse}_receipts"
    Group(place, "points", "orders").change(lambda state: assignment.rebalance(state or {}, "b", (), (), (), {}, 60))
    member.lanes.finish(handed, Attempt("DONE", 1, 0, None, None, 1))
    taken = member.take()
    assert taken is not None
    member.queues = {0, 1, 2}  # another lane comes while the receipt is written
    sync_while_it_is_written(member, taken)

    def share() -> dict[str, Any]:
        state = kept_state(place, "points", "orders")
        assert state is not None
        return dict(state["queues"]["1"])

    while share()["owner"] == "a":
        member.sync()
        write_receipts(member)
    assert share()["owner"] is None
    assert share()["cursor"]["normal"] == {"0": [5, 0]}


def test_what_waits_for_a_store_that_is_away_puts_no_message_of_a_lost_queue_off(
    warehouse: Path, member: GroupMember
) -> None:
    member.lanes.finish(hand_over(member, 5), Attempt("RETRY", 1, 0, 1, None, 1))
    taken = member.take()
    assert taken is not None
    Group(f"{warehouse}_receipts", "points", "orders").change(
        lambda state: assignment.leave(state or {}, "a", {})  # by others, who took it for gone
    )
    sync_while_it_is_written(member, taken, OSError("away"))
    assert member.lanes.take().receipts == []
    assert member.lanes.unwritten == 0


def test_what_is_written_is_not_kept_in_memory(member: GroupMember) -> None:
    handed = hand_over(member, 5)
    kept = weakref.ref(handed.chosen.rows.of_receipts)
    member.lanes.finish(handed, Attempt("DONE", 1, 0, None, None, 1))
    del handed
    write_receipts(member)
    gc.collect()
    assert kept() is None


def test_files_are_made_few_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, calls = threading.Event(), threading.Event(), list[int]()

    def slow(_: object) -> None:
        calls.append(1)
        begun.set()
        assert goes_on.wait(60)

    Receipts(str(tmp_path / "receipts"), "points", "orders")
    appender = Appender(str(tmp_path / "receipts"), None)
    monkeypatch.setattr("commitlake.clients.consumer.tables.compact", slow)
    thread = threading.Thread(target=appender.tidy)
    thread.start()
    try:
        assert begun.wait(60)
        appender.tidy()
    finally:
        goes_on.set()
        thread.join()
    assert calls == [1]


def test_a_store_that_is_away_when_files_are_made_few_fails_no_receipt(tmp_path: Path) -> None:
    Appender(str(tmp_path / "nowhere"), None).tidy()


def test_news_that_nobody_waits_for_take_no_memory() -> None:
    stop = Stop()
    for _ in range(100):
        stop.wake()
    assert stop._news.qsize() == 1
    stop.wait(60)
    stop.set()
    stop.wait(60)


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
    assert lanes.hand_over(handed, is_retry=True)
    return handed


def rebalanced(lanes: Lanes, state: dict[str, Any]) -> dict[str, Any]:
    _, cursors, held, _ = lanes.take()
    after = assignment.rebalance(state, "a", set(), {0, 1}, held, cursors)
    lanes.follow(after, "a", held & assignment.owned(after, "a").keys())
    return after


def test_a_queue_goes_to_its_due_owner_once_its_retries_are_released() -> None:
    lanes = Lanes()
    lanes.follow(ALONE, "a", set())
    handed = handed_again(lanes)
    state = rebalanced(lanes, {**ALONE, "members": {"a": 15, "b": 15}})
    assert state["queues"]["1"]["owner"] == "a", "a message of it is in hand"
    assert lanes.release(handed)
    assert rebalanced(lanes, state)["queues"]["1"]["owner"] is None


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
