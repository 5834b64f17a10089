"""One consumer is one member of its group: loops, retries in its hands, others that join, stores that are away."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.polling import wait_for
from tests.support.topic_table import consumer, message, rest, running, write

from commitlake.clients.consumer import assignment, clerk, group_member, subscription
from commitlake.clients.consumer.group import Group
from commitlake.clients.consumer.receipts import SCHEMA, Receipts
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.config import from_mapping
from commitlake.errors import ConsumerError


def members() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("commitlake-consumer")]


@pytest.fixture(autouse=True)
def alone() -> None:
    """What tests before have dropped has left its group."""
    gc.collect()
    wait_for(lambda: members() == [])


def test_a_consumer_is_an_iterator_and_a_second_loop_goes_on_where_the_first_was_left(warehouse: Path) -> None:
    with consumer(warehouse, follow=False) as messages:
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
    monkeypatch.setattr(group_member, "_LOOK_S", 0.2)
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
    [
        ("ordres", "warehouse", "topics that are there: orders"),
        ("orders", "nowhere", "is not there; a relative path counts from"),
    ],
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
    groups = [running(consumer(warehouse, group=name), found.append) for name in ("points", "b", "c")]
    with groups[0], groups[1], groups[2]:
        wait_for(lambda: len(found) == 120)
        os.rename(place, f"{place}-away")
        for each in found:
            each.done()
        time.sleep(2.5)
        assert not place.exists()
        os.rename(f"{place}-away", place)
        wait_for(lambda: "it works again" in caplog.text)
    told = [re.split("[,;]", line)[0] for line in caplog.messages]
    trouble = "the consumer can't write its receipts and its place"
    assert told == [trouble, "it works again"], "not for each group, nor twice"
    assert rest(warehouse) == []


def test_a_block_whose_receipts_could_not_be_written_ends_with_an_error(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "_PATIENCE_S", 0.5)
    place = Path(f"{warehouse}_receipts")
    with pytest.raises(ConsumerError, match="what has none will be redelivered"), consumer(warehouse) as messages:
        found = [next(messages) for _ in range(40)]
        os.rename(place, f"{place}-broken")
        place.write_text("no directory")
        for each in found:
            each.done()
    place.unlink()
    os.rename(f"{place}-broken", place)
    assert len(rest(warehouse)) == 40


@pytest.mark.parametrize(("lease_s", "turn_s"), [(1, 5.0), (6, 1.0)], ids=["slow turns", "a longer lease"])
def test_a_run_to_the_end_has_the_queues_of_an_instance_that_was_killed(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, lease_s: int, turn_s: float
) -> None:
    kill_one(warehouse, lease_s)
    monkeypatch.setattr(clerk, "_WRITE_S", turn_s)
    assert len(rest(warehouse, lease="1s")) == 40


def kill_one(warehouse: Path, lease_s: int) -> None:
    """An instance took all queues, and has shown no life since."""
    with consumer(warehouse) as messages:
        next(messages)
    group = Group(f"{warehouse}_receipts", "points", "orders")
    group.beats.show("killed")
    group.change(lambda state: assignment.rebalance(state or {}, "killed", (), range(4), (), {}, lease_s))


def test_a_run_to_the_end_looks_again_when_queues_came_during_its_last_look(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_one(warehouse, 1)
    look = subscription.Subscription._next_window

    def slow_look(self: subscription.Subscription) -> Any:
        found = look(self)
        if found is None:
            wait_for(self._joined.is_settled)
        return found

    monkeypatch.setattr(subscription.Subscription, "_next_window", slow_look)
    assert len(rest(warehouse, lease="1s")) == 40


def test_without_follow_a_loop_ends_though_the_topic_grows_as_fast_as_it_is_read(warehouse: Path) -> None:
    with consumer(warehouse, follow=False) as messages:
        for number, each in enumerate(messages):
            each.done()
            write(warehouse, "orders", [message(100 + number, batch=1 + number)])
            assert number < 40
        assert sum(each.done() is None for each in messages) == 40  # the next loop begins at what came meanwhile
    assert rest(warehouse) == []


@pytest.mark.parametrize("kind", ["messages", "batches"])
def test_a_later_loop_to_the_end_reads_a_queue_that_is_new(warehouse: Path, kind: str) -> None:
    with consumer(warehouse, follow=False) as messages:

        def finished() -> int:
            return sum(each.done() is None for each in (messages if kind == "messages" else messages.batches()))

        finished()
        write(warehouse, "orders", [message(100, queue=9)])
        assert finished() == 1


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


def test_a_loop_over_batches_that_was_left_and_begun_again_goes_on(warehouse: Path) -> None:
    found: list[int] = []
    with consumer(warehouse) as messages:
        for number in range(3):
            for batch in messages.batches():
                found.append(len(batch))
                batch.done()
                break
            write(warehouse, "orders", [message(100 + number, batch=1 + number)])
            time.sleep(1.5)  # the member has its turn
        assert found == [40, 1, 1]
    assert rest(warehouse) == ["m102"]


def test_a_batch_of_retries_does_not_wait_for_messages_that_nobody_has_yet(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(warehouse, follow=False) as messages:
        next(messages.batches()).retry("1ms")
    monkeypatch.setattr(subscription, "MOST_OPEN", 20)
    found: list[int] = []

    def read() -> None:
        for batch in messages.batches():
            found.append(len(batch))
            batch.done()

    with consumer(warehouse) as messages:
        reading = threading.Thread(target=read)
        reading.start()
        try:
            wait_for(lambda: sum(found) == 40)
        finally:
            messages.stop()
            reading.join()


def test_a_loop_over_batches_of_retries_that_was_left_leaves_the_others_to_the_next(warehouse: Path) -> None:
    for attempts in (1, 2):  # then half of them wait for their second attempt, and half for the third
        with consumer(warehouse, follow=False) as messages:
            for number, each in enumerate(messages):
                if number % attempts == 0:
                    each.retry("2s")
        time.sleep(2)
    found: list[int] = []
    with consumer(warehouse) as messages:
        while sum(found) < 40:
            for batch in messages.batches():
                found.append(len(batch))
                batch.done()
                break
    assert len(found) > 1
    assert rest(warehouse) == []


def test_retries_and_the_end_wait_while_others_may_have_the_queues(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(warehouse, follow=False) as messages:
        for each in messages:
            each.retry("1ms")
    is_late = threading.Event()
    monkeypatch.setattr(group_member.GroupMember, "is_late", lambda _: is_late.is_set())
    found: list[str] = []

    def handle(each: Any) -> None:
        found.append(each.message_id)
        each.done()
        if len(found) == 5:
            is_late.set()

    def run() -> None:
        for each in consumer(warehouse, follow=False):
            handle(each)

    ending = threading.Thread(target=run)
    ending.start()
    wait_for(is_late.is_set)
    time.sleep(1)
    assert len(found) == 5
    is_late.clear()
    ending.join(60)
    assert len(found) == 40


def test_what_nobody_wants_is_passed_within_seconds(warehouse: Path) -> None:
    conf = from_mapping({"warehouse": str(warehouse)})
    with running(consumer(warehouse, where="n > 5", lease="60s"), lambda _: None):
        wait_for(lambda: unfinished(conf, "orders", "points").num_rows == 0, 8)


def test_a_consumer_may_end_in_another_thread_than_it_began_in(warehouse: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        messages = consumer(warehouse, follow=False)
        found = [next(messages)]
        ending = threading.Thread(target=lambda: found.extend(messages))
        ending.start()
        ending.join(20)
        assert len(found) == 40
        other = consumer(warehouse, group="others")
        found.append(next(other))
        ending = threading.Thread(target=other.close)
        ending.start()
        ending.join(20)
        assert other.group == "others"
        for each in found:
            each.done()
        wait_for(lambda: members() == [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM], "as before"
    finally:
        signal.signal(signal.SIGTERM, before)
