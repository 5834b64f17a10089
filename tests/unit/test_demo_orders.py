"""The demo's order table and its listener, on a real SQLite file."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from commitlake import CommitLakeError, LocalTransactionState, Message, MessageExt
from commitlake.testing import Crash, Fault, InMemoryCoordinator
from commitlake.tools.demo import shop
from commitlake.tools.demo.orders import PATIENCE_MS, REVIEW_FROM, Order, OrderListener, OrderState, OrderTable
from commitlake.tools.demo.shop import Mishap

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN


@pytest.fixture
def table(tmp_path: Path) -> OrderTable:
    made = OrderTable(str(tmp_path / "orders.db"))
    made.create({"ann": 100_00, "eve": 0})
    return made


def half(order: Order) -> Message:
    """As the listener gets it; its transaction is named after the order."""
    message = order.to_message()
    message.transaction_id = f"tx-{order.id}"
    return message


def checked(order: Order, age_ms: int) -> MessageExt:
    message = half(order)
    return MessageExt(
        message.topic,
        message.body,
        keys=message.keys,
        transaction_id=message.transaction_id,
        half_queue=0,
        half_offset=0,
        born_timestamp=None,
        store_timestamp=int(time.time() * 1_000) - age_ms,
        check_times=1,
        check_id="0-0-0-1",
    )


def test_a_paid_order_commits_at_once_and_when_checked(table: OrderTable) -> None:
    order, listener = Order("1", "ann", 60_00), OrderListener(table)
    assert listener.execute_local_transaction(half(order), order) is COMMIT
    assert listener.check_local_transaction(checked(order, age_ms=0)) is COMMIT
    assert table.paid() == ["1"]


def test_without_money_neither_the_order_nor_the_charge_stays(table: OrderTable) -> None:
    listener = OrderListener(table)
    for order in (Order("1", "eve", 1), Order("2", "ann", 60_00), Order("3", "ann", 60_00), Order("4", "ann", 40_00)):
        listener.execute_local_transaction(half(order), order)
    assert [table.state(f"tx-{each}") for each in "1234"] == [None, OrderState.PAID, None, OrderState.PAID]


def test_an_order_in_review_stays_unknown(table: OrderTable) -> None:
    order, listener = Order("1", "ann", REVIEW_FROM), OrderListener(table)
    assert listener.execute_local_transaction(half(order), order) is UNKNOWN
    assert listener.check_local_transaction(checked(order, age_ms=10 * PATIENCE_MS)) is UNKNOWN
    assert table.paid() == []


def test_a_young_order_that_is_not_there_may_still_come(table: OrderTable) -> None:
    order, listener = Order("1", "ann", 1_00), OrderListener(table)
    assert listener.check_local_transaction(checked(order, age_ms=0)) is UNKNOWN
    assert listener.execute_local_transaction(half(order), order) is COMMIT


def test_an_order_rolled_back_by_a_check_can_not_be_placed_any_more(table: OrderTable) -> None:
    order, listener = Order("1", "ann", 1_00), OrderListener(table)
    assert listener.check_local_transaction(checked(order, age_ms=2 * PATIENCE_MS)) is ROLLBACK
    assert listener.execute_local_transaction(half(order), order) is ROLLBACK
    assert table.paid() == []


def test_a_check_during_the_local_transaction_decides_the_same(table: OrderTable) -> None:
    listener = OrderListener(table)
    for number in range(20):
        order = Order(str(number), "ann", 1_00)
        answers: list[LocalTransactionState] = []
        calls = (
            lambda: answers.append(listener.execute_local_transaction(half(order), order)),  # noqa: B023
            lambda: answers.append(listener.check_local_transaction(checked(order, 2 * PATIENCE_MS))),  # noqa: B023
        )
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 2
        assert len(set(answers)) == 1


@pytest.mark.parametrize("fault", Fault)
def test_an_order_that_is_sent_again_is_told_and_paid_once(table: OrderTable, fault: Fault) -> None:
    order, lake = Order("1", "ann", 60_00), InMemoryCoordinator()
    for befalls in (fault, None):
        with suppress(Crash, CommitLakeError), lake.producer("shop", OrderListener(table), fault=befalls) as producer:
            producer.send_message_in_transaction(order.to_message(), order)
    with lake.producer("shop", OrderListener(table)):
        lake.advance("10m")
    assert [message.keys for message in lake.messages("orders")] == table.paid() == ["1"]
    assert lake.pending == []


def test_the_plans_hold_every_mishap() -> None:
    plans = [plan for name in shop.SHOPS for plan in shop.plans(name)]
    mishaps = Counter(plan.mishap for plan in plans)
    assert len({plan.order.id for plan in plans}) == len(plans) == shop.TOTAL
    assert mishaps[Mishap.STUCK_BEFORE] == mishaps[Mishap.STUCK_AFTER] == shop.STUCK // 2
    assert sum(plan.order.amount >= REVIEW_FROM for plan in plans) == 1
    assert sum(plan.is_shipped for plan in plans) == 1
    silent = {shop.BALANCES[plan.order.customer] > 0 for plan in plans if plan.mishap is Mishap.SILENT}
    assert silent == {True, False}  # with and without a committed local transaction
