"""Every interleaving of two coordinators and their crashes: no loss, no double, no early decision, nothing stuck."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter, deque
from functools import reduce
from typing import Any

import pytest
from tests.property.protocol import AS_BUILT, COMMIT, DISCARD, ROLLBACK, STEPS, Order, Protocol, Sent, World

from commitlake.coordinator.round import Round

ONE = Sent(halves=1, ops=((0, COMMIT),), normal=0)
NORMAL = Sent(halves=0, ops=(), normal=2)
LATE = Sent(halves=2, ops=((0, COMMIT), (0, ROLLBACK)), normal=0)
"""A commit, an op that comes too late, and a half message without an op."""
MIXED = Sent(halves=1, ops=((0, COMMIT),), normal=1)
MORE = Sent(halves=3, ops=((0, COMMIT), (1, ROLLBACK), (0, ROLLBACK)), normal=0)


def explore(
    sent: Sent,
    order: Order = AS_BUILT,
    *,
    starts: int = 2,
    side_by_side: int = 2,
    saves: int = 0,
    is_there: bool = False,
    available_now: bool = False,
) -> int:
    """Visits every world that can be reached, breadth first; returns how many there are.

    Args:
        sent: what comes to Kafka.
        order: the order of steps.
        starts: how many starts there are.
        side_by_side: how many coordinators may run at a time.
        saves: how often maintenance saves what is open.
        is_there: whether all ops have come before the first start, and the deadline has not passed.
        available_now: whether coordinators work off what is there, and end.
    """
    protocol = Protocol(sent, order, available_now=available_now)
    arrived = len(sent.ops) if is_there else 0
    first = World(starts=starts, coordinators=(None,) * side_by_side, saves=saves, arrived=arrived)
    seen, waiting = {first}, deque([first])
    while waiting:
        world = waiting.popleft()
        assert_sound(world, sent)
        following = list(protocol.successors(world))
        if is_quiet(world, protocol) and not available_now:
            assert_whole(world, sent)
        for each in following:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return len(seen)


def is_quiet(world: World, protocol: Protocol) -> bool:
    """Whether the newest coordinator runs, and has nothing left to do; an older one fails at its next append."""
    if world.arrived < len(protocol.sent.ops) or not (world.is_due or not protocol.sent.halves):
        return False
    newest = [(at, own) for at, own in enumerate(world.coordinators) if own is not None and own.epoch == world.epoch]
    return any(not any(True for _ in protocol.steps(world, at, own)) for at, own in newest)


def assert_sound(world: World, sent: Sent) -> None:
    """What holds at every moment."""
    for table in ("half", "op", "topic", "rejected"):
        assert max(Counter(world.rows(table)).values(), default=1) == 1, f"{table} holds a row twice"
    ends = {row[0]: row[1] for row in world.rows("transactions")}
    assert len(ends) == len(world.rows("transactions")), "a half message ended twice"
    shown = {row[1] for row in world.rows("topic") if row[0] == 0}
    assert all(ends.get(half) == COMMIT for half in shown), "a message is visible that was not committed"
    for half, end in ends.items():
        given = [(op, decision) for op, (about, decision) in enumerate(sent.ops) if about == half]
        op, decision = given[0] if given else (len(sent.ops), DISCARD)
        is_late = world.is_due and op >= world.in_time
        assert end == decision or (is_late and end == DISCARD), "an end that no op decided, and no deadline"


def assert_whole(world: World, sent: Sent) -> None:
    """What holds when nothing is left to do."""
    assert world.rows("half") == tuple((n,) for n in range(sent.halves)), "a half message is lost"
    assert world.rows("op") == tuple((n,) for n in range(len(sent.ops))), "an op is lost"
    ends = {row[0]: row[1] for row in world.rows("transactions")}
    assert ends.keys() == set(range(sent.halves)), "a half message is stuck"
    committed = {(0, half) for half, end in ends.items() if end == COMMIT}
    assert set(world.rows("topic")) == committed | {(1, n) for n in range(sent.normal)}, "a message is lost"
    late = {(op,) for op, (half, decision) in enumerate(sent.ops) if ends[half] != decision}
    assert set(world.rows("rejected")) == late, "a late op is not refused"
    batches = {row[2] for row in world.rows("transactions")}
    assert batches <= {row[0] for row in world.rows("batches")}, "a batch is not complete"


@pytest.mark.parametrize(
    "sent", [LATE, MIXED, pytest.param(MORE, marks=pytest.mark.soak)], ids=["late", "mixed", "more"]
)
def test_one_coordinator_that_crashes_anywhere_ends_everything_once(sent: Sent) -> None:
    assert explore(sent, side_by_side=1, is_there=True) > 5_000


@pytest.mark.parametrize(
    "sent", [ONE, NORMAL, pytest.param(MIXED, marks=pytest.mark.soak)], ids=["one", "normal", "mixed"]
)
def test_two_coordinators_that_crash_anywhere_end_everything_once(sent: Sent) -> None:
    assert explore(sent, is_there=True) > 4_000


def test_no_deadline_runs_before_what_kafka_held_when_it_passed() -> None:
    assert explore(LATE, starts=1, side_by_side=1) > 1_000


def test_working_off_what_is_there_runs_no_deadline_ahead_of_what_came_since() -> None:
    assert explore(ONE, side_by_side=1, available_now=True) > 500


@pytest.mark.parametrize("sent", [ONE, pytest.param(LATE, marks=pytest.mark.long)], ids=["one", "late"])
def test_what_was_saved_at_any_moment_leads_to_the_same_end(sent: Sent) -> None:
    assert explore(sent, starts=3 if sent is ONE else 2, side_by_side=1, saves=1, is_there=True) > 5_000


ALONE = {"side_by_side": 1, "is_there": True}
EARLY = Order(batch=("write_ledger", "complete", "publish", "write_rest"), complete_waits=False)
WRONG: dict[str, tuple[Sent, Order, dict[str, Any]]] = {
    "topics before the ledger": (ONE, Order(batch=("publish", "write_ledger", "write_rest", "complete")), ALONE),
    "a batch that is complete too early": (ONE, EARLY, ALONE),
    "a position before its landing": (ONE, Order(landing=("complete_landing", "writes")), ALONE),
    "topic tables without a fence": (NORMAL, Order(fences_topics=False), {"is_there": True}),
    "a batch that is complete before its position, saved": (
        ONE,
        Order(complete_waits=False, saves_ahead=True),
        {**ALONE, "saves": 1},
    ),
    "a batch that a start has completed, saved before it landed": (
        ONE,
        Order(saves_ahead=True),
        {**ALONE, "starts": 3, "saves": 1},
    ),
    "the time taken anew in each round": (ONE, Order(asks=False), {"side_by_side": 1, "available_now": True}),
    "the time taken after Kafka was asked": (
        ONE,
        Order(question=("ask", "take_time")),
        {"side_by_side": 1, "starts": 1},
    ),
    "a position that does not count what was left over": (LATE, Order(counts_read=False), ALONE),
}


@pytest.mark.parametrize(("sent", "order", "given"), WRONG.values(), ids=list(WRONG))
def test_another_order_or_rule_is_found_to_be_wrong(sent: Sent, order: Order, given: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        explore(sent, order, **given)


def test_each_step_stands_for_a_function_of_the_code() -> None:
    for name, place in STEPS.items():
        module, _, path = place.partition(":")
        found = reduce(getattr, path.split("."), importlib.import_module(module))
        assert callable(found)
        assert hasattr(Protocol, name) or name in (*AS_BUILT.batch, *AS_BUILT.landing), name


def test_the_steps_of_a_batch_have_the_order_of_the_code() -> None:
    called = re.findall(r"batch\.(\w+)\(", inspect.getsource(Round.commit))
    assert [name for name in called if name in AS_BUILT.batch] == list(AS_BUILT.batch)
