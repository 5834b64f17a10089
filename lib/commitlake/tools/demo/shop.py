"""One instance of the order service, a process of its own: places orders, then answers checks until it is stopped.

Usage: python -m commitlake.tools.demo.shop JSON. Writes lines to standard output: `placed` or `stuck` for each order,
`answers` for each answer to a check of the killed shop, and `done` after the last order. The last orders wait
for a line of standard input. Ends when standard input does, so it never outlives the demo.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from commitlake import LocalTransactionState, Message, MessageExt, ProducerError, TransactionMQProducer
from commitlake.tools.demo.orders import Order, OrderListener, OrderState, OrderTable

GROUP = "order-service"
SHIPMENTS = "shipments"
BALANCES = {"ann": 9_000_00, "bob": 9_000_00, "cy": 9_000_00, "dee": 9_000_00, "eve": 0}
SHOPS = ("shop-1", "shop-2", "shop-3")
DOOMED = "shop-3"
ORDERS = {"shop-1": 45, "shop-2": 45, DOOMED: 30}
"""Orders of each shop. The doomed one has fewer, so that the others answer for it before their own last order."""
TOTAL = sum(ORDERS.values())
STUCK = 6
"""The last orders of the doomed shop hang: half of them before, half after their local transaction."""
HUNG = [f"{DOOMED}-{ORDERS[DOOMED] - left:02}" for left in range(STUCK)]
RUSH = 10
"""The last orders of each other shop come when the coordinator is killed, at once and without mishaps."""
PAUSE_S = 0.6
"""Pause after each order before the rush."""
PATIENT = {"send_msg_timeout": "15s", "start_timeout": "2m"}
"""Arguments of a producer: a loaded machine is slow, and the coordinator makes the topics."""


class Mishap(Enum):
    """A mishap of an order, on purpose."""

    NONE = "none"
    SILENT = "the listener does not know its answer"
    STUCK_BEFORE = "the instance hangs before the local transaction"
    STUCK_AFTER = "the instance hangs after the local transaction"


@dataclass(frozen=True)
class OrderPlan:
    """An order, its mishap, whether it is sent to two topics, and whether it is one of the rush."""

    order: Order
    mishap: Mishap = Mishap.NONE
    is_shipped: bool = False
    is_in_rush: bool = False


def plans(shop: str) -> Iterator[OrderPlan]:
    """Yield the orders of a shop, the same in every run."""
    customers = list(BALANCES)
    for number in range(1, ORDERS[shop] + 1):
        amount = 5_00 + number * 37 % 90 * 100
        is_first = (shop, number) == (SHOPS[0], 1)
        order = Order(f"{shop}-{number:02}", customers[number % 5], 2_500_00 if is_first else amount)
        is_shipped, is_in_rush = (shop, number) == (SHOPS[1], 3), shop != DOOMED and number > ORDERS[shop] - RUSH
        yield OrderPlan(order, _mishap(shop, number), is_shipped, is_in_rush)


def _mishap(shop: str, number: int) -> Mishap:
    left = ORDERS[shop] - number
    if shop == DOOMED and left < STUCK:
        return Mishap.STUCK_AFTER if left < STUCK // 2 else Mishap.STUCK_BEFORE
    return Mishap.SILENT if number % 7 == 0 and left >= RUSH else Mishap.NONE


class UnluckyListener(OrderListener):
    """The order listener with the mishaps of the plan."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Place the order of the plan `arg`."""
        assert isinstance(arg, OrderPlan)
        if arg.mishap is Mishap.STUCK_BEFORE:
            _hang()
        answer = super().execute_local_transaction(message, arg.order)
        if arg.mishap is Mishap.STUCK_AFTER:
            _hang()
        return LocalTransactionState.UNKNOW if arg.mishap is Mishap.SILENT else answer

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the transaction up, and report the answer where its shop was killed."""
        answer = super().check_local_transaction(message)
        if message.keys in HUNG and answer is not LocalTransactionState.UNKNOW:
            _report(f"answers {message.keys} {answer.name.removesuffix('_MESSAGE')}")
        return answer


class Shop:
    """Places the orders of one instance.

    Attributes:
        rush: set when the last orders come.
    """

    def __init__(self, producer: TransactionMQProducer, table: OrderTable) -> None:
        self._producer, self._table = producer, table
        self.rush = threading.Event()

    def place_all(self, name: str) -> None:
        """Place the shop's orders in sequence; each that hangs gets a thread."""
        for plan in plans(name):
            self.rush.wait(None if plan.is_in_rush else PAUSE_S)
            if plan.mishap in (Mishap.STUCK_BEFORE, Mishap.STUCK_AFTER):
                threading.Thread(target=self._place, args=[plan], daemon=True).start()
            else:
                self._place(plan)
        _report("done")

    def _place(self, plan: OrderPlan) -> None:
        try:
            if plan.is_shipped:
                self._place_and_ship(plan.order)
            else:
                self._producer.send_message_in_transaction(plan.order.to_message(), plan)
        except ProducerError as error:
            print(f"order {plan.order.id} was not placed: {error}", file=sys.stderr, flush=True)
        else:
            _report("placed")

    def _place_and_ship(self, order: Order) -> None:
        """Send messages to two topics in one transaction."""
        transaction = self._producer.begin_transaction()
        first = order.to_message()
        transaction.send(first)
        transaction.send(order.to_message(SHIPMENTS))
        if self._table.place(order, first.transaction_id) is OrderState.PAID:
            transaction.commit()
        else:
            transaction.rollback()


def _hang() -> None:
    _report("stuck")
    threading.Event().wait()


def _report(word: str) -> None:
    # One write for the whole line: two threads' prints may mix.
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


def main() -> None:
    """Run one instance; the argument holds its name, the order table, and the arguments of the producer."""
    given = json.loads(sys.argv[1])
    table = OrderTable(given["table"])
    producer = TransactionMQProducer(GROUP, UnluckyListener(table), **given["kafka"])
    with producer:
        shop = Shop(producer, table)
        threading.Thread(target=shop.place_all, args=[given["name"]], daemon=True).start()
        for _ in sys.stdin:
            shop.rush.set()


if __name__ == "__main__":
    main()
