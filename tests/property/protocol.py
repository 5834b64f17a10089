"""The protocol of landing, batches, the watermark, restarts and fencing as a small transition system, without Spark.

A world is the tables and the coordinators at work on them; `successors` are all worlds one step later. An append is
three steps, as off local disks: Delta fixes the table's version, the plan reads `epochs`, Delta commits. Everything
that a coordinator holds in memory goes with it when it crashes, which it may do before every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    "begin_epoch": "commitlake.coordinator.recovery.fencing:begin_epoch",
    "check": "commitlake.coordinator.recovery.fencing:check",
    "fence": "commitlake.coordinator.recovery.fencing:fence",
    "reached": "commitlake.coordinator.landing.start:reached",
    "complete_batch": "commitlake.coordinator.recovery.recover:complete_last_batch",
    "rebuild": "commitlake.coordinator.recovery.rebuild:open_rows",
    "save": "commitlake.coordinator.recovery.rebuild:save_snapshot",
    "ask": "commitlake.coordinator.landing.watermark:Watermark.ask",
    "landed": "commitlake.coordinator.landing.watermark:Watermark.at",
    "uncommitted": "commitlake.coordinator.landing.positions:uncommitted",
    "classify": "commitlake.coordinator.landing.land:Landing.classify",
    "writes": "commitlake.coordinator.landing.land:Landing.writes",
    "complete_landing": "commitlake.coordinator.landing.land:Landing.complete",
    "coordinate": "commitlake.coordinator.scheduler:Scheduler.begin",
    "write_ledger": "commitlake.coordinator.coordination.batch:Batch.write_ledger",
    "publish": "commitlake.coordinator.coordination.batch:Batch.publish",
    "write_rest": "commitlake.coordinator.coordination.batch:Batch.write_rest",
    "complete": "commitlake.coordinator.coordination.batch:Batch.complete",
}
"""By name, the function that each step stands for."""


class Sent(NamedTuple):
    """What comes to Kafka: so many half messages, ops as (half message, decision), and so many normal messages."""

    halves: int
    ops: tuple[tuple[int, int], ...]
    normal: int


class Order(NamedTuple):
    """The order of steps, and the rules; others show what the model finds.

    Attributes:
        batch: the steps of a batch.
        landing: the steps of a landing.
        fences_topics: whether topic tables are fenced.
        complete_waits: whether a batch is complete only after the position of its landing.
        saves_ahead: whether what is open is saved also when a complete batch is ahead of the position.
        asks: whether what Kafka held is asked for with the time, or the time taken anew in each round.
        question: which comes first, taking the time or asking.
        counts_read: whether a position counts what was read, left-over records too.
    """

    batch: tuple[str, ...] = ("write_ledger", "publish", "write_rest", "complete")
    landing: tuple[str, ...] = ("writes", "complete_landing")
    fences_topics: bool = True
    complete_waits: bool = True
    saves_ahead: bool = False
    asks: bool = True
    question: tuple[str, str] = ("take_time", "ask")
    counts_read: bool = True


AS_BUILT = Order()


class Saved(NamedTuple):
    """What maintenance has saved: the position, the newest complete batch, and what was open."""

    position: Row = (0, 0, 0)
    batch_id: int = 0
    halves: frozenset[int] = frozenset()
    ops: frozenset[int] = frozenset()


class Coordinator(NamedTuple):
    """One that runs. `todo` is what it is about to do; the rest is its memory.

    `asked` is what Kafka held when it was asked last, and whether the deadline had passed then; `is_late` is landed
    time: whether that has landed. `limit` is where one that works off what is there ends.
    """

    epoch: int = 0
    todo: tuple[Stage, ...] = ()
    position: Row = (0, 0, 0)
    read: Row = (0, 0, 0)
    limit: Row | None = None
    asked: tuple[Row, bool] | None = None
    was_due: bool = False
    is_late: bool = False
    uncommitted: frozenset[tuple[str, int]] = frozenset()
    open_halves: frozenset[int] = frozenset()
    open_ops: frozenset[int] = frozenset()
    batch_id: int = 0
    owns_topic: bool = False


class World(NamedTuple):
    """The tables, each a sorted tuple of rows; the newest epoch; how often each table was fenced; starts left.

    `arrived` is how many ops have come to Kafka, `in_time` how many had when the deadline of all half messages passed.
    """

    tables: tuple[tuple[Row, ...], ...] = ((),) * len(TABLES)
    saved: Saved = Saved()
    saves: int = 0
    arrived: int = 0
    in_time: int = -1
    epoch: int = 0
    fences: Row = (0,) * len(TABLES)
    coordinators: tuple[Coordinator | None, ...] = (None, None)
    starts: int = 2

    def rows(self, table: str) -> tuple[Row, ...]:
        return self.tables[TABLES.index(table)]

    @property
    def is_due(self) -> bool:
        return self.in_time >= 0

    def newest(self) -> tuple[Row, int]:
        """The newest position and the newest complete batch."""
        position: Row = max((row[1:] for row in self.rows("positions")), default=(0, 0, 0))
        return position, max([0, *(row[0] for row in self.rows("batches"))])


START: tuple[Stage, ...] = (
    ((("begin_epoch",), ("check",)),),
    ((("fence", *FENCED),),),
    ((("reached",), ("complete_batch",), ("rebuild",), ("uncommitted",)),),
    ((("coordinate", (), ()),),),  # what was open
)


class Protocol:
    """All that may happen to what was sent.

    Args:
        sent: what comes to Kafka.
        order: the order of steps.
        available_now: whether coordinators work off what is there, and end.
    """

    def __init__(self, sent: Sent, order: Order = AS_BUILT, *, available_now: bool = False) -> None:
        self.sent, self.order, self.available_now = sent, order, available_now

    def held(self, world: World) -> Row:
        """Where the logs end."""
        return (self.sent.halves, world.arrived, self.sent.normal)

    def successors(self, world: World) -> Iterator[World]:
        if world.arrived < len(self.sent.ops):
            yield world._replace(arrived=world.arrived + 1)
        if not world.is_due and self.sent.halves:
            yield world._replace(in_time=world.arrived)
        if world.saves:
            yield from self.save(world)
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
            return
        ends = own.limit or self.held(world)
        if own.read != ends:
            yield from self.classify(world, at, own, ends)
        elif own.open_halves and self.landed(own) and not own.is_late:
            yield from self.coordinate(world, at, own, (), ())
        elif own.open_halves and not own.is_late and world.is_due and own.asked != (self.held(world), True):
            yield _with(world, at, own._replace(todo=(self._question,)))
        elif own.limit:
            yield _with(world, at, None)

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
        (position, _), held = world.newest(), self.held(world)
        own = own._replace(position=position, read=position, limit=held if self.available_now else None)
        yield _with(world, at, own._replace(todo=(self._question, *own.todo)))

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
        """What was open when it was saved and what has landed since, without what later batches have ended."""
        since = world.saved
        ended = {row[0] for row in world.rows("transactions") if row[2] > since.batch_id}
        halves = {row[0] for row in world.rows("half") if row[0] >= since.position[0]} | since.halves
        ops = {row[0] for row in world.rows("op") if row[0] >= since.position[1]} | since.ops
        own = own._replace(open_halves=frozenset(halves - ended), open_ops=self._waiting(world, ops))
        yield _with(world, at, own)

    def _waiting(self, world: World, ops: set[int] | frozenset[int]) -> frozenset[int]:
        ended = {row[0] for row in world.rows("transactions")}
        ops = set(ops) - {row[0] for row in world.rows("rejected")}
        return frozenset(op for op in ops if self.sent.ops[op][0] not in ended or self._conflicts(world, op))

    def save(self, world: World) -> Iterator[World]:
        """What is open below the newest position: unless a batch is complete that is about what has not landed."""
        position, batch_id = world.newest()
        ahead = [row for row in world.rows("transactions") if row[0] >= position[0] and row[2] <= batch_id]
        if ahead and not self.order.saves_ahead:
            return
        ended = {row[0] for row in world.rows("transactions")}
        halves = frozenset({row[0] for row in world.rows("half") if row[0] < position[0]} - ended)
        ops = self._waiting(world, {row[0] for row in world.rows("op") if row[0] < position[1]})
        yield world._replace(saved=Saved(position, batch_id, halves, ops), saves=world.saves - 1)

    def uncommitted(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        found = {("half", row[0]) for row in world.rows("half") if row[0] >= own.position[0]}
        found |= {("op", row[0]) for row in world.rows("op") if row[0] >= own.position[1]}
        found |= {("topic", row[1]) for row in world.rows("topic") if row[0] == 1 and row[1] >= own.position[2]}
        yield _with(world, at, own._replace(uncommitted=frozenset(found)))

    # ---- a round

    def classify(self, world: World, at: int, own: Coordinator, held: Row) -> Iterator[World]:
        """A batch of Kafka may end anywhere."""
        for ends in product(*(range(low, max(low, high) + 1) for low, high in zip(own.read, held, strict=True))):
            if ends != own.read:
                if not self.order.asks:
                    own = own._replace(asked=(own.limit or ends, world.is_due))
                yield _with(world, at, own._replace(read=ends, todo=self.round(own, ends)))

    @property
    def _question(self) -> Stage:
        return (tuple((step,) for step in self.order.question),)

    def take_time(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        ends = own.asked[0] if own.asked else ()
        asked = own.asked if self.order.question[0] == "take_time" else (ends, world.is_due)
        yield _with(world, at, own._replace(was_due=world.is_due, asked=asked))

    def ask(self, world: World, at: int, own: Coordinator) -> Iterator[World]:
        yield _with(world, at, own._replace(asked=(self.held(world), own.was_due)))

    def landed(self, own: Coordinator) -> bool:
        """Landed time: whether the deadline had passed when Kafka was asked last, and its answer has landed."""
        if own.asked is None:
            return False
        ends, was_due = own.asked
        is_past = all(here >= end for here, end in zip(own.position, ends, strict=True))
        return was_due and (is_past or not self.order.asks)

    def round(self, own: Coordinator, ends: Row) -> tuple[Stage, ...]:
        new = [
            tuple((n,) for n in range(low, high) if (name, n) not in own.uncommitted)
            for name, low, high in zip(("half", "op", "topic"), own.read, ends, strict=True)
        ]
        if not self.order.counts_read:  # a position moves by what is new only
            ends = _row(end if rows else last for end, rows, last in zip(ends, new, own.position, strict=True))
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
        own = own._replace(owns_topic=True, uncommitted=own.uncommitted | {("topic", row[1]) for row in there})
        yield _with(world, at, _first(own, _append("topic", tuple(row for row in rows if row not in there))))

    def complete_landing(self, world: World, at: int, own: Coordinator, ends: Row) -> Iterator[World]:
        yield _with(world, at, own._replace(position=ends))

    def coordinate(
        self, world: World, at: int, own: Coordinator, halves: tuple[int, ...], ops: tuple[int, ...]
    ) -> Iterator[World]:
        """Ops apply in their order; the first decides, another decision is refused, the same once more is nothing."""
        own = own._replace(is_late=own.is_late or self.landed(own))
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
        if own.is_late:
            ends |= {half: DISCARD for half in opened - set(ends)}
        parked = {op for op in waiting if self.sent.ops[op][0] not in opened and (op,) not in refused}
        parked = {op for op in parked if self.sent.ops[op][0] not in {row[0] for row in world.rows("transactions")}}
        own = own._replace(open_halves=frozenset(opened - set(ends)), open_ops=frozenset(parked))
        yield _with(world, at, self.batch(own, ends, tuple(refused)))

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
        late = ("complete",) if self.order.complete_waits else ()
        chain = tuple(step for name in self.order.batch if name not in late for step in _append(*rows[name]))
        own = _first(own._replace(batch_id=batch_id), chain)
        if late:  # after the position of the landing
            own = own._replace(todo=(*own.todo, (_append(*rows["complete"]),)))
        return own

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


def _row(numbers: Iterable[int]) -> Row:
    return tuple(numbers)


def _first(own: Coordinator, chain: Chain) -> Coordinator:
    """`chain` is done before what its coordinator is about to do anyway, but for what runs beside it."""
    return own._replace(todo=((chain,), *own.todo)) if chain else own


def _with(world: World, at: int, own: Coordinator | None) -> World:
    """In the order of their epochs: it says nothing which of two is the first."""
    coordinators = (own if n == at else other for n, other in enumerate(world.coordinators))
    return world._replace(coordinators=tuple(sorted(coordinators, key=lambda own: -1 if own is None else own.epoch)))
