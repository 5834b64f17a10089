"""The demo's story, from the first order until nothing is pending and all sides hold the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from commitlake import DefaultMQProducer, Message
from commitlake.tools.demo import orders
from commitlake.tools.demo.comparison import Comparison, OrderTables
from commitlake.tools.demo.downstream import Service
from commitlake.tools.demo.orders import OrderTable
from commitlake.tools.demo.processes import AuditorProcess, CoordinatorProcess, instances
from commitlake.tools.demo.progress import DemoProgress
from commitlake.tools.demo.shop import BALANCES, DOOMED, SHOPS, TOTAL

STORY = f"""\
{len(SHOPS)} shops, one producer group, place {TOTAL} orders: a half message, then a local transaction
in SQLite. Some orders are declined, some get no answer, one is sent to two topics, one waits
for a review for ever. {DOOMED} is killed, and the others answer for it. The coordinator is
killed, and a standby takes over. Two services read the topic of the orders: one books points
for what was paid, one ships it, and tries again when its carrier does not answer.
"""
_PRICES, _REMINDERS = "prices", "reminders"
_DELAY_S = 10
_LOOK_EVERY_S = 1.0
_UP = "standing by"
"""A standby prints it as soon as it could take over. If the story awaited its rehearsal, it would take 12 s longer."""
_PATIENCE_S = 600
"""The story takes a minute on two quick cores, and four and more on slow ones that do other things too."""


class Scenario:
    """The processes and tables of the demo, and the story.

    `command` is `commitlake run`, `kafka` has the arguments with which producers reach Kafka, and `started` ends all
    that the story starts.

    Attributes:
        auditor: the audit, once its Java starts.
        counts: of the tables, as last read, see `OrderTables.counts`.
    """

    def __init__(
        self,
        place: Path,
        conf: Path,
        kafka: Mapping[str, Any],
        command: Sequence[str],
        tables: OrderTables,
        progress: DemoProgress,
        started: ExitStack,
    ) -> None:
        self.tables, self.progress, self._kafka = tables, progress, kafka
        self._place, self._command, self._begun = place, command, started.enter_context
        self._table = OrderTable(str(place / "orders.db"))
        self._table.create(BALANCES)
        self._coordinator = self._begun(CoordinatorProcess(command, place / "coordinator.log"))
        self.points = self._begun(Service(conf, tables.root, "points", place))
        self.logistics = self._begun(Service(conf, tables.root, "logistics", place, fails_first=7))
        self._shops = self._begun(instances(place / "orders.db", kafka, progress.write))
        self.counts: Counter[str] = Counter()
        self.auditor: AuditorProcess | None = None
        self._killed_at_ms = 0
        self._others: dict[str, Counter[str]] = {}
        self._takeover = self._steps_of_takeover()

    def play(self) -> list[str]:
        """Run until all is decided and all sides agree, or patience ends; return what still differs then."""
        self._others = _send_others(self._kafka)
        self.progress.write(f"sent a batch of 3 {_PRICES}, and a reminder for in {_DELAY_S} s")
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while (differences := self._differences()) and time.monotonic() < deadline:
                self._show()
                time.sleep(_LOOK_EVERY_S)
            return differences
        finally:
            self.progress.end()

    def killed(self) -> list[tuple[int, str]]:
        """Who was killed, and when, ms since epoch."""
        shops = [(each.killed_at_ms, f"{each.name} killed") for each in self._shops if each.is_killed]
        return [*shops, (self._killed_at_ms, "coordinator killed")]

    def _show(self) -> None:
        counts, placed = self.counts, sum(each.placed for each in self._shops)
        self.progress.show(
            f"{placed} orders: {counts['COMMITTED']} committed, {counts['ROLLED_BACK']} rolled back, "
            f"{counts['PENDING']} pending; {counts['checks']} checks; "
            f"{len(self.points.worked_on())} points, {len(self.logistics.worked_on())} shipped"
        )

    def _differences(self) -> list[str]:
        """Read the tables, and go on with the takeover; return what still keeps the story from its end."""
        self.counts = self.tables.counts()
        self._coordinator.has_said()  # raises, if it has ended; so do the shops
        are_done = all([each.is_done for each in self._shops])
        if waits := next(self._takeover, None):
            return [waits]
        if not are_done:
            return ["the shops are still placing orders"]
        if self.counts["PENDING"]:
            return [f"transactions: {self.counts['PENDING']} half messages are pending"]
        return [line for comparison in self._comparisons() for line in comparison.differences()]

    def _steps_of_takeover(self) -> Iterator[str]:
        """Start a standby, kill the coordinator, and await the standby's first row; at each look, what it waits for."""
        tell = self.progress.write
        while not self._coordinator.has_said("READY"):
            yield "the coordinator is not ready"
        tell("the coordinator is ready")
        while not self.counts["COMMITTED"]:
            yield "no order is committed"
        tell(f"the first {self.counts['COMMITTED']} orders are committed; starting a standby")
        standby = self._begun(CoordinatorProcess([*self._command, "--standby"], self._place / "standby.log"))
        while not standby.has_said(_UP):
            yield "the standby is not up"
        self._coordinator.kill()
        self._coordinator, self._killed_at_ms = standby, round(time.time() * 1_000)
        for each in self._shops:
            each.rush()
        shown = self.tables.counts()["COMMITTED"]
        tell("killed the coordinator; orders go on, and the standby completes what it had begun")
        while self.counts["COMMITTED"] <= shown:
            yield "the standby has not taken over"
        tell(f"the standby took over: the first new rows came after {time.time() - self._killed_at_ms / 1_000:.1f} s")
        self.auditor = self._begun(AuditorProcess(self.tables.root, self._place / "audit.log"))

    def _comparisons(self) -> list[Comparison]:
        table = f"the topic table {orders.TOPIC}"
        seen = self.tables.seen(orders.TOPIC, "keys")
        return [
            self.tables.landed(),
            Comparison("paid orders", "the order table", table, Counter(self._table.paid()), seen),
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
