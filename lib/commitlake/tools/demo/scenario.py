"""The demo's story, from the first order until nothing is pending and all sides hold the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from commitlake import Coordinator
from commitlake.tools.demo import orders, others
from commitlake.tools.demo.comparison import Comparison, OrderTables
from commitlake.tools.demo.downstream import Service
from commitlake.tools.demo.instances import Instances
from commitlake.tools.demo.orders import OrderTable
from commitlake.tools.demo.progress import DemoProgress
from commitlake.tools.demo.shop import DOOMED, ORDERS, SHOPS, STUCK

STORY = f"""\
{len(SHOPS)} shops, one producer group, place {ORDERS} orders each: a half message, then a local
transaction in SQLite. Some orders are declined, some get no answer, one is sent to two
topics, one waits for a review for ever. Then {DOOMED} is killed, and the others answer for it.
Two services read the topic of the orders: one books points for what was paid, one ships it,
and tries again when its carrier does not answer.
"""
KILLED = f"killed {DOOMED} with {STUCK} open transactions"

_LOOK_EVERY_S = 3.0
_PATIENCE_S = 240
"""The story takes a minute on 2 cores; a machine that needs longer than this is broken, or CommitLake is."""


@dataclass
class Scenario:
    """All who take part, and the story.

    Attributes:
        counts: of the tables, as last read, see `OrderTables.counts`.
    """

    coordinator: Coordinator
    tables: OrderTables
    table: OrderTable
    shops: Instances
    points: Service
    logistics: Service
    progress: DemoProgress
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._others: dict[str, Counter[str]] = {}

    def play(self, kafka: Mapping[str, Any]) -> list[str]:
        """Run until all is decided and all sides agree, or patience ends; return what still differs then.

        Args:
            kafka: arguments of a producer.
        """
        self._others = others.send(kafka)
        self.progress.write(f"sent a batch of 3 {others.PRICES}, and a reminder for in {others.DELAY_S} s")
        pool = ThreadPoolExecutor(1)
        try:
            return self._watch(pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self.progress.end()

    def _watch(self, pool: ThreadPoolExecutor) -> list[str]:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            differences = self._show_until(pool.submit(self._look))
            if not differences or time.monotonic() > deadline:
                return differences

    def _show_until(self, looking: Future[list[str]]) -> list[str]:
        """Show the state of things while another thread reads the tables: that takes seconds on a busy machine."""
        until = time.monotonic() + _LOOK_EVERY_S
        while time.monotonic() < until or not looking.done():
            self.coordinator.await_termination(timeout=0.2)
            self._show()
        return looking.result()

    def _show(self) -> None:
        counts = self.counts
        self.progress.show(
            f"{self.shops.placed} orders: {counts['COMMITTED']} committed, {counts['ROLLED_BACK']} rolled back, "
            f"{counts['PENDING']} pending; {counts['checks']} checks; "
            f"{len(self.points.worked_on())} points, {len(self.logistics.worked_on())} shipped"
        )

    def _look(self) -> list[str]:
        """Read the tables: what keeps the story from its end."""
        self.counts = self.tables.counts()
        if not self.shops.are_done:
            return ["the shops are still placing orders"]
        if self.counts["PENDING"]:
            return [f"transactions: {self.counts['PENDING']} half messages are pending"]
        differences = [line for comparison in self._comparisons() for line in comparison.differences()]
        if differences:
            return differences
        self.progress.write("all transactions have ended; the audit compares the tables ...")
        return self.tables.violations()

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
