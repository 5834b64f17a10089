"""What the contract promises, by Kafka's log alone: whatever lands first, and wherever a coordinator is killed."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.property.model import crash

from commitlake.coordinator.landing.positions import LandingPosition
from commitlake.coordinator.landing.watermark import Watermark
from commitlake.kafka.log_ends import Offsets
from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.kafka_topics import LANDED
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.states import Delivery, Kind, Refusal, State
from commitlake.testing.coordination import Segments
from commitlake.testing.records import LandedMessage as Message
from commitlake.testing.records import LandedOp as Op

QUEUES = {"half": 2, "op": 2, "messages": 2, "admin": 1}
TIMEOUT = 20


class Kafka:
    """Logs, and a coordinator that takes any part of each in a round."""

    def __init__(self, chosen: Random) -> None:
        self.chosen, self.now, self.answered = chosen, 1_000_000, 0
        self.logs: dict[tuple[str, int], list[Message | Op]] = {
            (source, queue): [] for source in LANDED for queue in range(QUEUES[source])
        }
        rules = {"timeout_ms": TIMEOUT, "check_interval_ms": 30, "check_repeat_ms": 300, "check_max": 2}
        park_ms, counts = chosen.choice([1, 5, 40]), chosen.choice([False, False, True])
        self.product = Segments(Rules(**rules, retention_ms=5_000, op_park_ms=park_ms, counts_unanswered=counts))
        self.position = LandingPosition(1, dict.fromkeys(self.logs, 0))
        self.start()

    def held(self) -> Offsets:
        return {place: len(log) for place, log in self.logs.items()}

    def start(self) -> None:
        self.watermark = Watermark()
        self.watermark.ask(self.now, self.held())

    def append(self, source: str, queue: int, record: Message | Op) -> None:
        self.logs[source, queue].append(record)

    def next(self, source: str) -> Place:
        queue = self.chosen.randrange(QUEUES[source])
        return Place(queue, len(self.logs[source, queue]))

    def transaction(self) -> None:
        """A first half message and its parts, some of which landing will refuse; an op comes later, or never."""
        first = Message(self.next("half"), self.now)
        self.append("half", first.at.queue, first)
        every = [first]
        for _ in range(self.chosen.choice([0, 1, 2])):
            part = Message(self.next("half"), self.now, first.at, refused=self.chosen.random() < 0.3)
            self.append("half", part.at.queue, part)
            every.append(part)
        if self.chosen.random() < 0.6:
            self.decide(tuple(m.at for m in every), from_check=False)

    def decide(self, listed: tuple[Place, ...], *, from_check: bool) -> None:
        queue = listed[0].queue
        at = Place(queue, len(self.logs["op", queue]))
        self.append("op", queue, Op(at, self.now, Kind.COMMIT, listed, from_check=from_check))

    def answer(self) -> None:
        """The database has it all, so what is checked is committed, with the half messages that the check lists."""
        for _, at, _, _, _, halves in self.product.ledger.checks[self.answered :]:
            self.decide((at, *sorted(halves - {at})), from_check=True)
        self.answered = len(self.product.ledger.checks)

    def delayed(self) -> None:
        due = self.now + self.chosen.choice([1, 50, 300])
        message = Message(self.next("messages"), self.now, deliver_at=due, delayed=True)
        self.append("messages", message.at.queue, message)
        if self.chosen.random() < 0.7:
            queue = message.at.queue
            at = Place(queue, len(self.logs["op", queue]))
            self.append("op", queue, Op(at, self.now + self.chosen.choice([0, 5, 60]), Kind.RECALL, (message.at,)))

    def round(self, shares: tuple[float, ...]) -> None:
        ends: dict[tuple[str, int], int] = {}
        read: list[Message | Op] = []
        for (source, queue), log in self.logs.items():
            here = self.position.next(source, queue)
            end = here + round((len(log) - here) * self.chosen.choice(shares))
            ends[source, queue] = end
            read += log[here:end]
        self.position = self.position.advanced(ends)
        messages = [record for record in read if isinstance(record, Message)]
        for message in messages:
            self.product.land(message)
        ops = [record for record in read if isinstance(record, Op)]
        self.product.batch(self.now, self.watermark.at(self.position), messages, ops)
        if self.chosen.random() < 0.8:
            self.watermark.ask(self.now, self.held())

    def crash(self) -> None:
        crash(self.product)
        self.now += self.chosen.choice([0, 100])
        self.start()

    def play(self) -> None:
        steps = [self.transaction, self.delayed, self.answer, *[lambda: self.round((0, 0, 0.5, 1))] * 3, self.crash]
        for _ in range(self.chosen.randint(5, 40)):
            self.chosen.choice(steps)()
            self.now += self.chosen.choice([0, 1, 11, 60, 400])
        for _ in range(40):
            self.answer()
            self.now += 200
            self.round((1,))


@given(st.integers(0, 2**32))
def test_what_kafka_had_in_time_counts_and_no_transaction_is_shown_in_part(seed: int) -> None:
    kafka = Kafka(Random(seed))
    kafka.play()
    ledger, logs = kafka.product.ledger, kafka.logs.values()
    messages = [record for log in logs for record in log if isinstance(record, Message)]
    ops = [record for log in logs for record in log if isinstance(record, Op)]
    refused = {m.at for m in messages if m.refused}
    due = {m.at: m.deliver_at for m in messages if m.delayed}
    for op in ops:
        if op.decision == Kind.RECALL and op.stored < due[op.listed[0]]:
            assert ledger.deliveries["messages", op.listed[0]][0] == Delivery.RECALLED
        elif op.decision == Kind.COMMIT and not refused & {*op.listed}:
            assert ledger.rejected.get(op.key) != Refusal.NO_HALF_MESSAGE
    for m in messages:
        if m.refused and m.first:
            assert ledger.transactions[m.first][-1].state == State.DISCARDED
    assert not kafka.product.states
