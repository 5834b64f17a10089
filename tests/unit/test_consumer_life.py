"""One consumer is one member of its group: loops, retries in its hands, others that join, stores that are away."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.polling import wait_for
from tests.support.topic_table import message, write

import commitlake
from commitlake.clients.consumer import keeper, subscription
from commitlake.clients.consumer.receipts import SCHEMA, Receipts
from commitlake.clients.consumer.rows import Rows
from commitlake.errors import ConsumerError


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """40 messages in four queues."""
    place = tmp_path / "warehouse"
    write(place, "orders", [message(n, batch=0, queue=n % 4) for n in range(40)])
    return place


def consumer(warehouse: Path, topic: Any = "orders", **arguments: Any) -> Any:
    given = {"group": "points", "poll": "50ms", "lease": "3s", **arguments}
    return commitlake.consume({"warehouse": str(warehouse)}, topic, **given)


def rest(warehouse: Path, **arguments: Any) -> list[str]:
    """What a group has not done."""
    with consumer(warehouse, follow=False, **arguments) as messages:
        return [each.message_id for each in messages if each.done() is None]


@contextmanager
def running(messages: Any, handle: Any) -> Iterator[None]:
    """A consumer in a thread of its own."""

    def read() -> None:
        with messages:
            for each in messages:
                handle(each)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        messages.stop()
        thread.join(30)
        assert not thread.is_alive()


def members() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("commitlake-consumer")]


def test_a_consumer_is_an_iterator_and_a_second_loop_goes_on_where_the_first_was_left(warehouse: Path) -> None:
    with consumer(warehouse, follow=False) as messages:
        assert iter(messages) is messages
        found = [next(messages)]
        for each in messages:
            found.append(each)
            if len(found) == 10:
                break
        assert len(members()) == 1
        found += list(messages)
        assert sorted(each.message_id for each in found) == sorted(f"m{n}" for n in range(40))
        for each in found:
            each.done()
    assert rest(warehouse) == []


def test_a_consumer_that_nobody_holds_any_more_leaves_its_group(warehouse: Path) -> None:
    for each in consumer(warehouse):
        each.done()
        break
    wait_for(lambda: members() == [])
    next(consumer(warehouse))  # neither it nor its message is held
    gc.collect()
    wait_for(lambda: members() == [])
    assert len(rest(warehouse)) == 39


def test_messages_that_are_finished_after_the_iteration_count(warehouse: Path) -> None:
    for each in list(consumer(warehouse, follow=False)):
        each.done()
    assert rest(warehouse) == []
    with consumer(warehouse, group="others", follow=False) as messages:
        found = list(messages)
    assert rest(warehouse, group="others") == [each.message_id for each in found]


def test_a_message_that_is_finished_after_its_consumer_was_closed_is_told(
    warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with consumer(warehouse) as messages:
        found = next(messages)
    found.done()
    assert "was finished after its consumer was closed" in caplog.text


def test_a_list_of_more_messages_than_may_be_open_does_not_hang(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "MOST_OPEN", 20)
    monkeypatch.setattr(subscription, "_STALLED_S", 0.2)
    assert len(list(consumer(warehouse, follow=False))) == 40


def test_a_message_that_stays_open_stops_its_own_queue_before_memory_is_full(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is finished behind it is kept, and a restart gets it again."""
    monkeypatch.setattr(subscription, "MOST_KEPT_BYTES", 1)
    held: list[Any] = []
    found: set[str] = set()

    def handle(each: Any) -> None:
        if each.queue_id == 0 and not held:
            held.append(each)
        else:
            found.add(each.message_id)
            each.done()

    with running(consumer(warehouse, poll="50ms"), handle):
        wait_for(lambda: len(found) == 39)
        for batch in (100, 101):
            write(warehouse, "orders", [message(batch * 10 + queue, batch=batch, queue=queue) for queue in range(4)])
            time.sleep(1.5)
        assert {"m1000", "m1010"} & found == set()
        assert {f"m{batch}{queue}" for batch in (100, 101) for queue in (1, 2, 3)} <= found
        assert f"queue 0 of orders is not read further before message {held[0].position} is done" in caplog.text
        held[0].done()
        wait_for(lambda: len(found) == 47)


def windows_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Rows) for each in gc.get_objects())


def test_what_is_finished_behind_an_open_message_takes_no_memory(tmp_path: Path) -> None:
    for batch in range(10):  # a window each; those of queue 1 are never all finished before the first is
        write(tmp_path, "orders", [message(batch * 10 + queue, batch=batch, queue=queue) for queue in (0, 1, 1, 1)])
        before = windows_in_memory()
    found: list[Any] = []

    def handle(each: Any) -> None:
        found.append(each.message_id)
        if len(found) == 1:
            held.append(each)
        else:
            each.done()

    held: list[Any] = []
    with running(consumer(tmp_path, poll="50ms"), handle):
        for batch in range(10, 20):
            write(tmp_path, "orders", [message(batch * 10 + queue, batch=batch, queue=queue) for queue in (0, 1)])
            wait_for(lambda: f"m{batch}1" in found)  # noqa: B023
        wait_for(lambda: windows_in_memory() - before <= 3)
        held[0].done()
    assert rest(tmp_path) == []


def test_open_messages_keep_only_so_many_windows_in_memory(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subscription, "MOST_WINDOW_BYTES", 1)
    monkeypatch.setattr(subscription, "_STALLED_S", 0.2)
    held: list[Any] = []
    with running(consumer(warehouse, poll="50ms"), held.append):
        wait_for(lambda: "1 messages of orders are handed over and not finished" in caplog.text)
        while held:
            held.pop().done()
            time.sleep(0.05)
    assert len(rest(warehouse)) < 40


def waiting(offset: int) -> pa.Table:
    """The receipt of an instance that is no more, for a normal message of queue 0 that is due again."""
    now = datetime.now(UTC)
    row = {
        **dict.fromkeys(SCHEMA.names),
        **{"consumer_group": "points", "topic": "orders", "queue_id": 0, "message_id": "late"},
        **{"source": "messages", "source_queue": 0, "source_offset": offset, "source_index": 0},
        **{"state": "RETRY", "attempt": 1, "round": 0, "due_at": now, "at": now},
    }
    return pa.Table.from_pylist([row], SCHEMA)


def test_a_retry_that_the_snapshot_does_not_have_is_looked_up_until_it_is_there(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is behind the cursor, so that it comes by its receipt alone."""
    monkeypatch.setattr(keeper, "_LOOK_S", 0.2)
    monkeypatch.setattr(subscription, "_PUT_OFF_MS", 200)
    write(warehouse, "orders", [message(900, queue=0)])
    found: list[tuple[str, int]] = []

    def handle(each: Any) -> None:
        found.append((each.message_id, each.attempt))
        each.done()

    with running(consumer(warehouse, poll="30s"), handle):
        wait_for(lambda: len(found) == 41)
        Receipts(f"{warehouse}_receipts/receipts", "points", "orders").append(waiting(800))
        time.sleep(2)
        assert len(found) == 41
        write(warehouse, "orders", [message(800, queue=0, message_id="late")])
        wait_for(lambda: found[41:] == [("late", 2)])


def test_retries_come_once_when_another_instance_joins(warehouse: Path) -> None:
    seen: list[tuple[str, str]] = []

    def handle(name: str, each: Any) -> None:
        if each.attempt == 1:
            each.retry("4s")
        else:
            seen.append((name, each.message_id))
            each.done()

    first, second = consumer(warehouse), consumer(warehouse)
    with running(first, lambda each: handle("a", each)):
        time.sleep(2)
        with running(second, lambda each: handle("b", each)):
            wait_for(lambda: len(seen) >= 40)
            time.sleep(1)
    assert sorted(name for _, name in seen) == sorted(f"m{n}" for n in range(40))
    assert {name for name, _ in seen} == {"a", "b"}
    assert rest(warehouse) == []


def test_second_attempts_in_the_hands_of_one_instance_do_not_go_to_another(warehouse: Path) -> None:
    held: list[Any] = []
    others: list[Any] = []
    with running(consumer(warehouse), lambda each: held.append(each) if each.attempt == 2 else each.retry("100ms")):
        wait_for(lambda: len(held) == 40)
        with running(consumer(warehouse), others.append):
            time.sleep(5)
            assert others == []
            for each in held:
                each.done()
            write(warehouse, "orders", [message(100 + queue, batch=1, queue=queue) for queue in range(4)])
            wait_for(lambda: len(others) == 2)
            for each in (*others, *held[40:]):
                each.done()


@pytest.mark.parametrize(
    ("topic", "place", "told"),
    [("ordres", "warehouse", "for example orders"), ("orders", "nowhere", "there is no directory")],
)
def test_a_topic_that_is_not_there_is_told_at_once(
    warehouse: Path, caplog: pytest.LogCaptureFixture, topic: str, place: str, told: str
) -> None:
    with running(consumer(warehouse.parent / place, topic), lambda _: None):
        wait_for(lambda: told in caplog.text)
    assert len(caplog.records) == 1, "not each time it looks"
    assert caplog.records[0].levelno == logging.WARNING


def test_a_store_of_receipts_that_is_away_for_a_while_ends_nothing(
    warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Path(f"{warehouse}_receipts")
    found: list[Any] = []
    with running(consumer(warehouse), found.append):
        wait_for(lambda: len(found) == 40)
        os.rename(place, f"{place}-away")
        for each in found:
            each.done()
        time.sleep(2.5)
        assert not place.exists()
        os.rename(f"{place}-away", place)
    assert "cannot write what group and consumer did" in caplog.text
    assert rest(warehouse) == []


def test_a_block_whose_receipts_could_not_be_written_ends_with_an_error(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_PATIENCE_S", 0.5)
    place = Path(f"{warehouse}_receipts")
    with pytest.raises(ConsumerError, match="what was not written comes again"), consumer(warehouse) as messages:
        found = [next(messages) for _ in range(40)]
        os.rename(place, f"{place}-broken")
        place.write_text("no directory")
        for each in found:
            each.done()
    place.unlink()
    os.rename(f"{place}-broken", place)
    assert len(rest(warehouse)) == 40


def test_several_topics_are_read_by_one_consumer(warehouse: Path) -> None:
    write(warehouse, "bills", [message(n, batch=0, message_id=f"b{n}") for n in range(3)])
    with consumer(warehouse, ["orders", "bills"], follow=False) as messages:
        found = [(each.topic, each.message_id) for each in messages if each.done() is None]
    assert [name for topic, name in found if topic == "bills"] == ["b0", "b1", "b2"]
    assert len(found) == 43
    assert rest(warehouse) == []


def test_batches_are_tables_whose_receipts_are_written_together(warehouse: Path) -> None:
    with consumer(warehouse, follow=False) as messages:
        (batch,) = messages.batches()
        assert (len(batch), batch.topic, batch.attempt) == (40, "orders", 1)
        assert batch.table["body"].to_pylist() == [str(n).encode() for n in range(40)]
        batch.retry("1ms")
    with consumer(warehouse, follow=False) as messages:
        again = list(messages.batches())
        assert {each.attempt for each in again} == {2}
        assert sum(map(len, again)) == 40
        for each in again:
            each.done()
    assert rest(warehouse) == []
