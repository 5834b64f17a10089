"""The protocol of landing, batches, restarts and fencing as a small transition system, without Spark and Delta.

A world is the tables and the coordinators at work on them; `successors` are all worlds one step later. An append is
three steps, as off local disks: Delta fixes the table's version, the plan reads `epochs`, Delta commits. Everything
that a coordinator holds in memory goes with it when it crashes, which it may do before every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

Row = tuple[int, ...]
Step = tuple[object, ...]
Chain = tuple[Step, ...]
Stage = tuple[Chain, ...]
"""Chains that run side by side; the next stage begins when all have ended."""

COMMIT, ROLLBACK, DISCARD = range(3)
TABLES = ("half", "op", "topic", "positions", "transactions", "rejected", "batches")
FENCED = tuple(name for name in TABLES if name != "topic")
"""What `fencing.own` fences; the table of a topic is fenced by whoever writes to it first, or completes a batch."""

STEPS = {
    "begin_epoch": "commitlake.recovery.fencing:begin_epoch",
    "check": "commitlake.recovery.fencing:check",
    "fence": "commitlake.recovery.fencing:fence",
    "reached": "commitlake.landing.start:reached",
    "complete_batch": "commitlake.recovery.complete_batch:complete_last_batch",
    "rebuild": "commitlake.recovery.rebuild:open_rows",
    "leftover": "commitlake.landing.positions:leftover",
    "judge": "commitlake.landing.land:Landing.judge",
    "writes": "commitlake.landing.land:Landing.writes",
    "complete_landing": "commitlake.landing.land:Landing.complete",
    "coordinate": "commitlake.chain:Chain.coordinate",
    "tick": "commitlake.chain:Chain.tick",
    "write_ledger": "commitlake.coordination.batch:Batch.write_ledger",
    "publish": "commitlake.coordination.batch:Batch.publish",
    "write_rest": "commitlake.coordination.batch:Batch.write_rest",
    "complete": "commitlake.coordination.batch:Batch.complete",
}
"""By name, the function that each step stands for."""


class Sent(NamedTuple):
    """What Kafka holds: so many half messages, ops as (half message, decision), and so many normal messages."""

    halves: int
    ops: tuple[tuple[int, int], ...]
    normal: int

    @property
    def ends(self) -> Row:
        return (self.halves, len(self.ops), self.normal)


class Order(NamedTuple):
    """The order of steps; other orders show what the model finds."""

    batch: tuple[str, ...] = ("write_ledger", "publish", "write_rest", "complete")
    landing: tuple[str, ...] = ("writes", "complete_landing")
    fences_topics: bool = True


AS_BUILT = Order()


class Coordinator(NamedTuple):
    """One that runs. `todo` is what it is about to do; the rest is its memory."""

    epoch: int = 0
    todo: tuple[Stage, ...] = ()
    position: Row = (0, 0, 0)
    leftover: frozenset[tuple[str, int]] = frozenset()
    open_halves: frozenset[int] = frozenset()
    open_ops: frozenset[int] = frozenset()
    batch_id: int = 0
    owns_topic: bool = False


class World(NamedTuple):
    """The tables, each a sorted tuple of rows; the newest epoch; how often each table was fenced; starts left."""

    tables: tuple[tuple[Row, ...], ...] = ((),) * len(TABLES)
    epoch: int = 0
    fences: Row = (0,) * len(TABLES)
    coordinators: tuple[Coordinator | None, ...] = (None, None)
    starts: int = 2

    def rows(self, table: str) -> tuple[Row, ...]:
        return self.tables[TABLES.index(table)]


START: tuple[Stage, ...] = (
    ((("begin_epoch",), ("check",)),),
    ((("fence", *FENCED),),),
    ((("reached",), ("complete_batch",), ("rebuild",), ("leftover",)),),
    ((("coordinate", (), ()),),),  # what was open
)


class Protocol:
    """All that may happen to what was sent."""

    def __init__(self, sent: Sent, order: Order = AS_BUILT) -> None:
        self.sent, self.order = sent, order

    def successors(self, world: World) -> Iterator[World]:
        for at, own in enumerate(world.coordinators):
            if own is None:
                if world.starts:
                    begun = Coordinator(todo=START)
                    yield _with(world._replace(starts=world.starts - 1), at, begun)
                continue
            if world.starts:  # a crash that nobody follows is the end of the story
                yield _with(world, at, None)
            yield from self.steps(world, at, own)

    def steps(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        """What a coordinator may do next."""
        if own.todo:
            stage = own.todo[0]
            for number, chain in enumerate(stage):
                rest = tuple(other for place, other in enumerate(stage) if place != number)
                left = (chain[1:], *rest) if chain[1:] else rest
                todo = (left, *own.todo[1:]) if left else own.todo[1:]
                yield from self.run(chain[0], world, at, own._replace(todo=todo), chain[1:])
        elif own.position != self.sent.ends:
            yield from self.judge(world, at, own)
        elif own.open_halves:
            yield from self.tick(world, at, own)

    def run(self, step: Step, world: World, at: int, own: Coordinator, chain: Chain) -> Iterator[World]:
        name, *given = step
        yield from getattr(self, str(name))(world, at, own, *given)

    # ---- a start

    def begin_epoch(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        epoch = world.epoch + 1
        yield _with(world._replace(epoch=epoch), at, own._replace(epoch=epoch))

    def check(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        yield _with(world, at, own if own.epoch == world.epoch else None)

    def fence(self, world: World, at: int, own: Coordinator, *tables: str) -> Iterator[World]:
        fences = tuple(n + (name in tables) for name, n in zip(TABLES, world.fences, strict=True))
        yield _with(world._replace(fences=fences), at, own)

    def reached(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        position = max((row[1:] for row in world.rows("positions")), default=(0, 0, 0))
        yield _with(world, at, own._replace(position=position))

    def complete_batch(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        """The newest batch, if it is not whole: its topic is fenced, read, and gets what is missing."""
        last = max([0, *(row[2] for row in world.rows("transactions"))])
        own = own._replace(batch_id=max([last, *(row[0] for row in world.rows("batches"))]))
        if last and (last,) not in world.rows("batches"):
            own = _first(own, (("fence", "topic"), ("complete_topic", last)))
        yield _with(world, at, own)

    def complete_topic(self, world: World, at: int, own: Coordinator, batch_id: int) -> Iterator[World]:
        shown = {(0, row[0]) for row in world.rows("transactions") if row[1:] == (COMMIT, batch_id)}
        missing = tuple(sorted(shown - set(world.rows("topic"))))
        chain = (*_append("topic", missing), *_append("batches", ((batch_id,),)))
        yield _with(world, at, _first(own, chain))

    def rebuild(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        ended = {row[0] for row in world.rows("transactions")}
        halves = {row[0] for row in world.rows("half")} - ended
        ops = {row[0] for row in world.rows("op")} - {row[0] for row in world.rows("rejected")}
        waiting = {op for op in ops if self.sent.ops[op][0] not in ended or self._conflicts(world, op)}
        yield _with(world, at, own._replace(open_halves=frozenset(halves), open_ops=frozenset(waiting)))

    def leftover(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        found = {("half", row[0]) for row in world.rows("half") if row[0] >= own.position[0]}
        found |= {("op", row[0]) for row in world.rows("op") if row[0] >= own.position[1]}
        found |= {("topic", row[1]) for row in world.rows("topic") if row[0] == 1 and row[1] >= own.position[2]}
        yield _with(world, at, own._replace(leftover=frozenset(found)))

    # ---- a round

    def judge(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        """A batch of Kafka may end anywhere."""
        for ends in product(*(range(low, high + 1) for low, high in zip(own.position, self.sent.ends, strict=True))):
            if ends != own.position:
                yield _with(world, at, own._replace(todo=self.round(own, ends)))

    def round(self, own: Coordinator, ends: Row) -> tuple[Stage, ...]:
        new = [
            tuple((n,) for n in range(low, high) if (name, n) not in own.leftover)
            for name, low, high in zip(("half", "op", "topic"), own.position, ends, strict=True)
        ]
        normal = tuple((1, row[0]) for row in new[2])
        writes = [_append("half", new[0]), _append("op", new[1]), self._to_topic(own, normal)]
        position = (("complete_landing", ends), *_append("positions", ((own.epoch, *ends),)))
        coordinate = (("coordinate", tuple(row[0] for row in new[0]), tuple(row[0] for row in new[1])),)
        steps: dict[str, Stage] = {"writes": tuple(filter(None, writes)), "complete_landing": (position, coordinate)}
        return tuple(filter(None, (steps[name] for name in self.order.landing)))

    def _to_topic(self, own: Coordinator, rows: tuple[Row, ...]) -> Chain:
        """What an older coordinator has under way there must fail, or be seen, before this one's rows are appended."""
        if rows and self.order.fences_topics and not own.owns_topic:
            return (("fence", "topic"), ("writes", rows))
        return _append("topic", rows)

    def writes(self, world: World, at: int, own: Coordinator, rows: tuple[Row, ...]) -> Iterator[World]:
        """The first rows of a topic in this run, without those that stand there; nor are others landed again later."""
        there = {row for row in world.rows("topic") if row[0] == 1}
        own = own._replace(owns_topic=True, leftover=own.leftover | {("topic", row[1]) for row in there})
        yield _with(world, at, _first(own, _append("topic", tuple(row for row in rows if row not in there))))

    def complete_landing(self, world: World, at: int, own: Coordinator, ends: Row) -> Iterator[World]:
        yield _with(world, at, own._replace(position=ends))

    def coordinate(
        self, world: World, at: int, own: Coordinator, halves: tuple[int, ...], ops: tuple[int, ...]
    ) -> Iterator[World]:
        """Ops apply in their order; the first decides, another decision is refused, the same once more is nothing."""
        opened, waiting = own.open_halves | set(halves), sorted(own.open_ops | set(ops))
        ends: dict[int, int] = {}
        refused: list[Row] = []
        for op in waiting:
            half, decision = self.sent.ops[op]
            if half in opened:
                ends.setdefault(half, decision)
            loses = ends[half] != decision if half in ends else half not in opened and self._conflicts(world, op)
            if loses:
                refused.append((op,))
        parked = {op for op in waiting if self.sent.ops[op][0] not in opened and (op,) not in refused}
        parked = {op for op in parked if self.sent.ops[op][0] not in {row[0] for row in world.rows("transactions")}}
        own = own._replace(open_halves=frozenset(opened - set(ends)), open_ops=frozenset(parked))
        yield _with(world, at, self.batch(own, ends, tuple(refused)))

    def tick(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        """Everything in Kafka has landed, and the deadlines of what is open have passed."""
        decided = {self.sent.ops[op][0] for op in own.open_ops}
        ends = {half: DISCARD for half in own.open_halves - decided}
        if ends:
            yield _with(world, at, self.batch(own._replace(open_halves=own.open_halves - set(ends)), ends, ()))

    def batch(self, own: Coordinator, ends: dict[int, int], refused: tuple[Row, ...]) -> Coordinator:
        if not ends and not refused:
            return own
        batch_id = own.batch_id + 1
        rows: dict[str, tuple[str, tuple[Row, ...]]] = {
            "write_ledger": ("transactions", tuple((half, end, batch_id) for half, end in sorted(ends.items()))),
            "publish": ("topic", tuple((0, half) for half, end in sorted(ends.items()) if end == COMMIT)),
            "write_rest": ("rejected", refused),
            "complete": ("batches", ((batch_id,),)),
        }
        chain = tuple(step for name in self.order.batch for step in _append(*rows[name]))
        return _first(own._replace(batch_id=batch_id), chain)

    def _conflicts(self, world: World, op: int) -> bool:
        half, decision = self.sent.ops[op]
        return any(row[0] == half and row[1] != decision for row in world.rows("transactions"))

    # ---- an append

    def fix_version(
        self, world: World, at: int, own: Coordinator, table: str, rows: tuple[Row, ...]
    ) -> Iterator[World]:
        fences = world.fences[TABLES.index(table)]
        if len(world.coordinators) == 1:  # nobody can come between
            yield from self.commit(world, at, own, table, rows, fences)
            return
        yield _with(world, at, _first(own, (("read_epochs",), ("commit", table, rows, fences))))

    def read_epochs(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        yield _with(world, at, own if own.epoch == world.epoch else None)

    def commit(
        self, world: World, at: int, own: Coordinator, table: str, rows: tuple[Row, ...], fences: int
    ) -> Iterator[World]:
        place = TABLES.index(table)
        if world.fences[place] != fences:
            yield _with(world, at, None)
            return
        changed = tuple(sorted(world.tables[place] + rows))
        tables = tuple(changed if n == place else there for n, there in enumerate(world.tables))
        yield _with(world._replace(tables=tables), at, own)


def _append(table: str, rows: tuple[Row, ...]) -> Chain:
    return (("fix_version", table, rows),) if rows else ()


def _first(own: Coordinator, chain: Chain) -> Coordinator:
    """`chain` is done before what its coordinator is about to do anyway, but for what runs beside it."""
    return own._replace(todo=((chain,), *own.todo)) if chain else own


def _with(world: World, at: int, own: Coordinator | None) -> World:
    coordinators = tuple(own if n == at else other for n, other in enumerate(world.coordinators))
    return world._replace(coordinators=coordinators)
