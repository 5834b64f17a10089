"""The demo: its order table and listener, on a real SQLite file, its progress, and which directories it removes."""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.killing import held

from commitlake import CommitLakeError, LocalTransactionState, Message, MessageExt
from commitlake.coordinator.recovery import jvm_lock
from commitlake.errors import FencedError, WarehouseError
from commitlake.testing import Crash, Fault, InMemoryCoordinator
from commitlake.tools.cli.demo_directory import fresh
from commitlake.tools.demo import shop
from commitlake.tools.demo.comparison import Comparison
from commitlake.tools.demo.orders import PATIENCE_MS, REVIEW_FROM, Order, OrderListener, OrderState, OrderTable
from commitlake.tools.demo.picture import drawn
from commitlake.tools.demo.progress import DemoProgress
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
    assert sum(plan.is_in_rush for plan in plans) == 2 * shop.RUSH
    assert [plan.order.id for plan in plans if plan.mishap in (Mishap.STUCK_BEFORE, Mishap.STUCK_AFTER)] == shop.HUNG[
        ::-1
    ]
    silent = {shop.BALANCES[plan.order.customer] > 0 for plan in plans if plan.mishap is Mishap.SILENT}
    assert silent == {True, False}  # with and without a committed local transaction


def compare(left: str, right: str) -> list[str]:
    return Comparison("orders", "the table", "the points", Counter(left), Counter(right)).differences()


def test_the_same_things_differ_in_nothing() -> None:
    assert compare("abca", "aabc") == []


def test_a_thing_that_stands_twice_is_a_difference() -> None:
    assert compare("ab", "aba") == ["orders: 1 in the points but not in the table: a"]


def test_what_is_missing_on_either_side_is_named() -> None:
    assert compare("abcdefgh", "z") == [
        "orders: 8 in the table but not in the points: a, b, c, d, e, ...",
        "orders: 1 in the points but not in the table: z",
    ]


def test_the_picture_has_a_line_for_each_step_in_order_with_a_point_at_its_time() -> None:
    assert drawn([(11_000, "visible"), (1_000, "half message"), (6_000, "shop-3 killed")]) == [
        "  half message    0.0 s  o",
        f"  shop-3 killed   5.0 s  {'-' * 22}o",
        f"  visible        10.0 s  {'-' * 43}o",
    ]


def test_on_a_terminal_the_state_is_refreshed_in_place_cut_to_its_width() -> None:
    out = io.StringIO()
    progress = DemoProgress(columns=20, out=out)
    progress.show("x" * 100)
    progress.write("done")
    assert out.getvalue().removeprefix("\x1b[?25l") == ("  0s xxxxxxxxxxxxxx…\r\x1b[2K  0s done\n  0s xxxxxxxxxxxxxx…")
    progress.end()
    assert out.getvalue().endswith("\x1b[2K")


def test_without_a_terminal_the_state_is_a_rare_plain_line() -> None:
    out = io.StringIO()
    progress = DemoProgress(out=out)
    for _ in range(10):
        progress.show("state")
    progress.write("[done] " * 20)
    assert out.getvalue() == f"  0s state\n  0s {'[done] ' * 20}\n"


def test_a_fresh_directory_has_nothing_of_an_earlier_demo_but_all_else(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("keep")
    for _ in range(2):
        with fresh(tmp_path) as directories:
            assert {path.name for path in tmp_path.iterdir()} == {"notes", ".coordinator.lock"}
            for name in ("orders.db", "orders.db-wal", "points.db"):
                (tmp_path / name).touch()
            (Path(str(directories["warehouse"])) / "half").mkdir(parents=True)


def test_a_warehouse_that_is_not_of_a_demo_stays(tmp_path: Path) -> None:
    (tmp_path / "warehouse" / "half").mkdir(parents=True)
    with pytest.raises(WarehouseError, match=r"not of a demo.*--dir"), fresh(tmp_path):
        pass
    assert (tmp_path / "warehouse" / "half").is_dir()


def test_a_warehouse_stays_where_the_jvm_of_a_killed_demo_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_lock, "WAIT_S", 0.5)
    (tmp_path / "orders.db").touch()
    (tmp_path / "warehouse" / "half").mkdir(parents=True)
    with held(tmp_path / "warehouse"), pytest.raises(FencedError, match="whose JVM"), fresh(tmp_path):
        pass
    assert (tmp_path / "warehouse" / "half").is_dir()
    with fresh(tmp_path):
        assert not (tmp_path / "warehouse").exists()
