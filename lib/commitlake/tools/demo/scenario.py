"""The demo's story, from the first order until nothing is pending and all sides hold the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commitlake import DefaultMQProducer, Message
from commitlake.tools.demo import orders
from commitlake.tools.demo.comparison import Comparison, OrderTables
from commitlake.tools.demo.downstream import Service
from commitlake.tools.demo.orders import OrderTable
from commitlake.tools.demo.processes import CoordinatorProcess, Instance
from commitlake.tools.demo.progress import DemoProgress
from commitlake.tools.demo.shop import DOOMED, ORDERS, SHOPS

STORY = f"""\
{len(SHOPS)} shops, one producer group, place {ORDERS} orders each: a half message, then a local
transaction in SQLite. Some orders are declined, some get no answer, one is sent to two
topics, one waits for a review for ever. The coordinator is killed in the middle and started
again. Then {DOOMED} is killed, and the others answer for it. Two services read the topic of
the orders: one books points for what was paid, one ships it, and tries again when its
carrier does not answer.
"""
_PRICES, _REMINDERS = "prices", "reminders"
_DELAY_S = 10
_LOOK_EVERY_S = 1.0
_PATIENCE_S = 600
"""The story takes a minute on two quick cores, and four and more on slow ones that do other things too."""


@dataclass
class Scenario:
    """The processes and tables of the demo, and the story.

    Attributes:
        counts: of the tables, as last read, see `OrderTables.counts`.
    """

    coordinator: CoordinatorProcess
    tables: OrderTables
    table: OrderTable
    shops: Sequence[Instance]
    points: Service
    logistics: Service
    progress: DemoProgress
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._others: dict[str, Counter[str]] = {}
        self._starts = 1
        self._was_ready = False

    def play(self, kafka: Mapping[str, Any]) -> list[str]:
        """Run until all is decided and all sides agree, or patience ends; return what still differs then."""
        self._others = _send_others(kafka)
        self.progress.write(f"sent a batch of 3 {_PRICES}, and a reminder for in {_DELAY_S} s")
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while (differences := self._look()) and time.monotonic() < deadline:
                self._show()
                time.sleep(_LOOK_EVERY_S)
            return differences
        finally:
            self.progress.end()

    def _show(self) -> None:
        counts, placed = self.counts, sum(each.placed for each in self.shops)
        self.progress.show(
            f"{placed} orders: {counts['COMMITTED']} committed, {counts['ROLLED_BACK']} rolled back, "
            f"{counts['PENDING']} pending; {counts['checks']} checks; "
            f"{len(self.points.worked_on())} points, {len(self.logistics.worked_on())} shipped"
        )

    def _look(self) -> list[str]:
        """Read the tables, and kill or await the coordinator; return what still keeps the story from its end."""
        counts, before = self.tables.counts(), self.counts
        self.counts = counts
        if counts["COMMITTED"] and not before["COMMITTED"]:
            self.progress.write(f"the first {counts['COMMITTED']} orders are committed")
        if not self._is_back():
            return ["the coordinator is not ready"]
        if not all([each.is_done for each in self.shops]):  # each raises, if it has died
            return ["the shops are still placing orders"]
        if self.counts["PENDING"]:
            return [f"transactions: {self.counts['PENDING']} half messages are pending"]
        return [line for comparison in self._comparisons() for line in comparison.differences()]

    def _is_back(self) -> bool:
        """Kill the coordinator after its first commits, and start it again; return whether it is ready again."""
        is_ready = self.coordinator.is_ready
        if is_ready and not self._was_ready:
            self.progress.write("the coordinator is ready" if self._starts == 1 else "the coordinator is back")
        self._was_ready = is_ready
        if is_ready and self._starts == 1 and self.counts["COMMITTED"]:
            self.coordinator.kill()
            self.progress.write(
                "killed the coordinator; the shops go on, and its next start completes what it had begun"
            )
            self.coordinator.start()
            self._starts, self._was_ready = 2, False
        return self._was_ready and self._starts == 2

    def _comparisons(self) -> list[Comparison]:
        table = f"the topic table {orders.TOPIC}"
        seen = self.tables.seen(orders.TOPIC, "keys")
        return [
            self.tables.landed(),
            Comparison("paid orders", "the order table", table, Counter(self.table.paid()), seen),
            Comparison("orders", table, "the points", seen, Counter(self.points.worked_on())),
            Comparison("orders", table, "what is shipped", seen, Counter(self.logistics.worked_on())),
            *(self._others_are_seen(topic, ids) for topic, ids in self._others.items()),
        ]

    def _others_are_seen(self, topic: str, ids: Counter[str]) -> Comparison:
        seen = self.tables.seen(topic, "message_id")
        return Comparison("other messages", "what was sent", f"the topic table {topic}", ids, seen)


def _send_others(kafka: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Send three prices as one batch, and a reminder that becomes visible after `_DELAY_S`; ids by topic."""
    with DefaultMQProducer("marketing", **kafka) as producer:
        prices = [Message(_PRICES, f"{item}: {price}") for item, price in (("tea", 4), ("cake", 6), ("jam", 3))]
        batch = producer.send(prices)
        reminder = producer.send(Message(_REMINDERS, "Tell us how you like it", delay_seconds=_DELAY_S))
    return {_PRICES: Counter(batch.msg_id.split(",")), _REMINDERS: Counter([reminder.msg_id])}
