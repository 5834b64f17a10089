"""Every interleaving of two coordinators and their crashes: no loss, no double, no early decision, nothing stuck."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter, deque
from functools import reduce

import pytest
from tests.property.protocol import AS_BUILT, COMMIT, DISCARD, ROLLBACK, STEPS, Order, Protocol, Sent, World

from commitlake.coordination.commit import Committer

ONE = Sent(halves=1, ops=((0, COMMIT),), normal=0)
NORMAL = Sent(halves=0, ops=(), normal=2)
LATE = Sent(halves=2, ops=((0, COMMIT), (0, ROLLBACK)), normal=0)
"""A commit, an op that comes too late, and a half message without an op."""
MIXED = Sent(halves=1, ops=((0, COMMIT),), normal=1)
MORE = Sent(halves=3, ops=((0, COMMIT), (1, ROLLBACK), (0, ROLLBACK)), normal=0)


def explore(sent: Sent, order: Order = AS_BUILT, starts: int = 2, side_by_side: int = 2) -> int:
    """Visits every world that can be reached, breadth first; returns how many there are."""
    protocol = Protocol(sent, order)
    first = World(starts=starts, coordinators=(None,) * side_by_side)
    seen, waiting = {first}, deque([first])
    while waiting:
        world = waiting.popleft()
        assert_sound(world, sent)
        following = list(protocol.successors(world))
        if is_quiet(world, protocol):
            assert_whole(world, sent)
        for each in following:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return len(seen)


def is_quiet(world: World, protocol: Protocol) -> bool:
    """Whether the newest coordinator runs, and has nothing left to do; an older one fails at its next append."""
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
    first: dict[int, int] = {}
    for half, decision in sent.ops:
        first.setdefault(half, decision)
    assert all(first.get(half, DISCARD) == end for half, end in ends.items()), "an end that no op decided"


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
    assert explore(sent, starts=2, side_by_side=1) > 5_000


@pytest.mark.parametrize(
    "sent", [ONE, NORMAL, pytest.param(MIXED, marks=pytest.mark.soak)], ids=["one", "normal", "mixed"]
)
def test_two_coordinators_that_crash_anywhere_end_everything_once(sent: Sent) -> None:
    assert explore(sent) > 5_000


SWAPPED = {
    "topics before the ledger": (ONE, Order(batch=("publish", "write_ledger", "write_rest", "complete"))),
    "a batch that is complete too early": (ONE, Order(batch=("write_ledger", "complete", "publish", "write_rest"))),
    "a position before its landing": (ONE, Order(landing=("complete_landing", "writes"))),
    "topic tables without a fence": (NORMAL, Order(fences_topics=False)),
}


@pytest.mark.parametrize(("sent", "order"), SWAPPED.values(), ids=list(SWAPPED))
def test_another_order_of_steps_is_found_to_be_wrong(sent: Sent, order: Order) -> None:
    with pytest.raises(AssertionError):
        explore(sent, order)


def test_each_step_stands_for_a_function_of_the_code() -> None:
    for name, place in STEPS.items():
        module, _, path = place.partition(":")
        found = reduce(getattr, path.split("."), importlib.import_module(module))
        assert callable(found)
        assert hasattr(Protocol, name) or name in (*AS_BUILT.batch, *AS_BUILT.landing), name


def test_the_steps_of_a_batch_have_the_order_of_the_code() -> None:
    called = re.findall(r"batch\.(\w+)\(\)", inspect.getsource(Committer.__call__))
    assert [name for name in called if name in AS_BUILT.batch] == list(AS_BUILT.batch)
