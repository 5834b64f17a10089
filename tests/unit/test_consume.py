"""`commitlake.consume` on real tables: order, start, filters, retries, dead letters, receipts, and groups."""

from __future__ import annotations

import json
import shutil
import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.polling import wait_for
from tests.support.topic_table import compact, message, put_off, running, write
from tests.support.topic_table import consumer as consuming
from tests.support.topic_table import rest as ids

import commitlake
from commitlake.clients.consumer import overview
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.receipts import Receipts
from commitlake.clients.consumer.topic import Topic
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.config import from_mapping
from commitlake.errors import ArgumentError, ConfigError, ConsumerError, NoTableError, WarehouseError
from commitlake.tools.cli.app import app


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Three batches of transactions in two queues, and normal messages."""
    place = tmp_path / "warehouse"
    for batch in range(3):
        rows = [message(10 * batch + n, batch=batch, queue=n % 2, tags="paid" if n else "new") for n in range(3)]
        write(place, "orders", rows)
        write(place, "orders", [message(100 + batch, queue=batch % 2, message_id=f"n{batch}")])
    return place


ALL = [f"m{10 * batch + n}" for batch in range(3) for n in range(3)]
NORMAL = ["n0", "n1", "n2"]


consumer = partial(consuming, follow=False)


def done(received: ReceivedMessage) -> ReceivedMessage:
    received.done()
    return received


def receipts(warehouse: Path) -> list[dict[str, Any]]:
    rows = DeltaTable(f"{warehouse}_receipts/receipts").to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["at"], row["attempt"]))


def test_messages_come_in_the_order_of_the_topic_and_once_for_a_group(warehouse: Path) -> None:
    found = ids(warehouse)
    assert [each for each in found if each in ALL] == ALL
    assert sorted(each for each in found if each not in ALL) == NORMAL
    assert ids(warehouse) == []
    assert sorted(ids(warehouse, group="others")) == sorted(ALL + NORMAL)


def test_what_is_not_finished_comes_again_and_nothing_before_it(warehouse: Path) -> None:
    with consumer(warehouse) as messages:
        for each in messages:
            if each.message_id != "m11":
                each.done()
    again = ids(warehouse)
    assert again[0] == "m11"
    assert "m10" not in again  # m10 is in the other queue, m1 before it in this one
    assert ids(warehouse) == []


def test_a_message_has_all_that_the_table_has(warehouse: Path) -> None:
    write(
        warehouse,
        "orders",
        [message(30, batch=9, properties={"region": "eu"}, sharding_key=b"c", tags="t", producer_group="g")],
    )
    with consumer(warehouse, tags="t") as messages:
        (found,) = [done(each) for each in messages]
    assert (found.topic, found.message_id, found.transaction_id, found.keys) == ("orders", "m30", "m30", "k30")
    assert (found.body, found.properties, found.sharding_key) == (b"30", {"region": "eu"}, b"c")
    assert (found.batch_id, found.queue_id, found.attempt, found.producer_group) == (9, 0, 1, "g")
    assert found.position == "half-0-30-0"
    assert found.visible_at == datetime(2026, 1, 1, 0, 0, 0, 30_000, UTC)
    assert "30" in repr(found) and "eu" not in repr(found)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", ALL),
        ("newest", []),
        (1_767_225_600_011, ["m11", "m12", "m20", "m21", "m22"]),
        (datetime(2026, 1, 1, 0, 0, 0, 20_000, UTC), ["m20", "m21", "m22"]),
    ],
)
def test_a_new_group_begins_where_it_is_told(warehouse: Path, start: Any, expected: list[str]) -> None:
    assert [each for each in ids(warehouse, start=start) if each in ALL] == expected
    write(warehouse, "orders", [message(40, batch=7, queue=0), message(41, batch=7, queue=5)])
    assert ids(warehouse, start="newest") == ["m40", "m41"]


def test_tags_and_a_condition_choose_and_the_rest_does_not_come_later(warehouse: Path) -> None:
    assert ids(warehouse, tags="new") == ["m0", "m10", "m20"]
    assert ids(warehouse) == []
    assert ids(warehouse, group="sql", where="KEYS = 'k21'") == ["m21"]


def test_a_retry_comes_later_without_holding_up_others_and_ends_among_dead_letters(warehouse: Path) -> None:
    attempts: list[tuple[str, int]] = []
    with consumer(warehouse, follow=True) as messages:
        for each in messages:
            attempts.append((each.message_id, each.attempt))
            if each.message_id == "m1":
                each.retry("100ms", max_attempts=3, remark="no such customer")
            else:
                each.done()
            if attempts[-1] == ("m1", 3):
                break
    assert [number for name, number in attempts if name == "m1"] == [1, 2, 3]
    assert {name for name, _ in attempts} == {*ALL, *NORMAL}
    assert attempts.index(("m1", 2)) > attempts.index(("m2", 1))
    mine = [(row["state"], row["attempt"], row["remark"]) for row in receipts(warehouse) if row["message_id"] == "m1"]
    assert mine == [(state, n, "no such customer") for n, state in enumerate(["RETRY", "RETRY", "DEAD"], 1)]


def test_a_dead_letter_that_is_sent_again_begins_a_new_round(warehouse: Path) -> None:
    put_off(warehouse, "m1", most=1)
    table = Receipts(f"{warehouse}_receipts/receipts", "points", "orders")
    (letter,) = table.dead()
    table.send_again([letter], "customer is there now", 0)
    assert table.dead() == []
    with consumer(warehouse) as messages:
        assert [(done(each).message_id, each.attempt, each.round) for each in messages] == [("m1", 1, 1)]
    assert table.dead() == table.waiting() == []


def test_receipts_tell_what_became_of_each_message(warehouse: Path) -> None:
    ids(warehouse)
    rows = receipts(warehouse)
    assert sorted(row["message_id"] for row in rows) == sorted(ALL + NORMAL)
    assert {(row["consumer_group"], row["topic"], row["state"], row["attempt"]) for row in rows} == {
        ("points", "orders", "DONE", 1)
    }
    assert {row["message_id"]: row["batch_id"] for row in rows}["m21"] == 2


def test_a_live_table_is_followed_from_before_it_is_there(tmp_path: Path) -> None:
    found: list[str] = []
    with running(consumer(tmp_path / "warehouse", follow=True), lambda each: found.append(done(each).message_id)):
        for number in range(3):
            write(tmp_path / "warehouse", "orders", [message(number, batch=number, queue=number)])
            wait_for(lambda: f"m{number}" in found)  # noqa: B023 - called at once
    assert found == ["m0", "m1", "m2"]


def test_messages_may_be_finished_in_other_threads_until_the_block_ends(warehouse: Path) -> None:
    with consumer(warehouse) as messages:
        threads = [threading.Timer(0.2, each.done) for each in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ids(warehouse) == []


def refused() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"group": ""}, "group: '' is not allowed"
    yield {"group": "x" * 241}, "is not allowed; give a name of 1 to 240 characters"
    yield {"start": "yesterday"}, "start: 'yesterday' is not allowed"
    yield {"start": datetime(2026, 1, 1)}, "has no time zone"  # noqa: DTZ001
    yield {"poll": "soon"}, "poll: 'soon' is not allowed"
    yield {"where": "SELECT"}, "where: 'SELECT'"
    yield {"storage_options": "x"}, "storage_options: give a map"
    yield {"storage_options": {"timeout": 5}}, "storage_options: give a map"


@pytest.mark.parametrize(("arguments", "told"), list(refused()))
def test_arguments_that_can_not_be_used_are_refused(warehouse: Path, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        consumer(warehouse, **arguments)


@pytest.mark.parametrize("arguments", [{"after": "5"}, {"max_attempts": "3"}, {"max_attempts": True}])
def test_a_retry_that_can_not_be_leaves_the_message_open(warehouse: Path, arguments: dict[str, Any]) -> None:
    with consumer(warehouse) as messages, pytest.raises(ArgumentError, match=r"(after|max_attempts): .* is not"):
        for each in messages:
            each.retry(**arguments)
    assert len(ids(warehouse)) == 12


def test_a_topic_without_a_row_ends_a_batch_job_with_an_error_that_names_the_others(warehouse: Path) -> None:
    with pytest.raises(NoTableError) as caught:
        next(commitlake.consume({"warehouse": str(warehouse)}, "ordrs", group="points", follow=False))
    told = (
        f"there is no table at {warehouse}/topics/ordrs; check the name, or wait: the first row of a topic becomes "
        "visible some seconds after its commit; topics that are there: orders"
    )
    assert str(caught.value) == told
    assert caught.value.__suppress_context__, "one line, and no traceback of deltalake"
    assert len(traceback.extract_tb(caught.tb)) <= 3, "nor of what is below the consumer"


def test_a_topic_without_a_row_is_told_to_a_batch_job_and_holds_up_no_other(
    warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = DeltaTable(warehouse / "topics" / "orders")
    new = warehouse / "topics" / "new"
    DeltaTable.create(new, there.schema(), partition_by=there.metadata().partition_columns)
    found = list(commitlake.consume({"warehouse": str(warehouse)}, ["new", "orders"], group="points", follow=False))
    assert {each.topic for each in found} == {"orders"}
    assert f"the table at {new} has no row: what was sent is pending, delayed or rolled back, or wait" in caplog.text


def test_places_that_can_not_be_read_here_are_told(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"there is no table at .*topics/orders"):
        ids(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="receipts: it is empty"):
        _ = from_mapping({"warehouse": "schema:a.b"}).receipts_place
    with pytest.raises(WarehouseError, match=r"main.lake can't be read here; name the place of its tables"):
        commitlake.consume({"warehouse": "schema:main.lake"}, "orders", group="g")
    conf = commitlake.consume(
        {"warehouse": str(tmp_path), "receipts": "/proc/nowhere"}, "orders", group="g", follow=False
    )
    write(tmp_path, "orders", [message(1, batch=1)])
    with pytest.raises(ConsumerError, match="receipts: cannot make the table"):
        list(conf)


def test_what_a_group_has_not_done_is_a_question_that_needs_no_spark(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: str) -> tuple[object, list[dict[str, Any]]]:
        command = ["unfinished", "orders", "--group=points", "--json", f"--set=warehouse={warehouse}", *words]
        capsys.readouterr()  # of the log
        with pytest.raises(SystemExit) as ended:
            app(command)
        printed = capsys.readouterr()
        told.append(printed.err)
        return ended.value.code, [json.loads(line) for line in printed.out.splitlines()]

    told: list[str] = []
    assert ask("--tags=new") == (3, [])
    with consumer(warehouse) as messages:
        for each in messages:
            if each.message_id == "m0":
                code, before = ask("--tags=new")
                assert (code, [row["message_id"] for row in before]) == (0, ["m0", "m10", "m20"])
                assert (before[0]["state"], before[0]["visible_at"]) == ("OPEN", "2026-01-01T00:00:00.000Z")
            if each.message_id == "m1":
                each.retry(max_attempts=1, remark="no such customer")
            elif each.message_id == "m2":
                each.retry("1h")
            else:
                each.done()
    code, left = ask()
    first = "group 'points' has never read the topic orders; `commitlake groups` shows those that did\n"
    assert told == [first, "", ""]
    assert [(row["message_id"], row["state"], row["attempts"], row["remark"]) for row in left] == [
        ("m1", "DEAD", 1, "no such customer"),
        ("m2", "RETRY", 1, None),
    ]
    with pytest.raises(SystemExit) as ended:
        app(["send-again", "orders", "half-0-1-0", "half-0-9-9", "--group=points", f"--set=warehouse={warehouse}"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines() == [
        "half-0-9-9 is no dead letter of the group points",
        "sent 1 of 1 dead letters again; the group gets them within some seconds",
    ]
    assert ids(warehouse) == ["m1"]
    assert ask("--where", "KEYS = 'k9'") == (3, [])


def test_the_command_prints_each_message_once_and_bytes_that_are_no_text_as_base64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*words: str) -> tuple[object, list[dict[str, Any]]]:
        with pytest.raises(SystemExit) as ended:
            app(["consume", "orders", "--group=try", f"--set=warehouse={tmp_path}", *words])
        return ended.value.code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    rows = [message(n, batch=n, body=body) for n, body in enumerate([b"tea", "schön".encode(), b"\xff\x00"])]
    write(tmp_path, "orders", rows)
    code, (first,) = read("--limit=1")
    assert code == 0
    assert first == {
        **{"visible_at": "2026-01-01T00:00:00.000Z", "position": "half-0-0-0", "message_id": "m0"},
        **{"transaction_id": "m0", "tags": None, "keys": "k0", "properties": {}, "body": "tea"},
    }
    code, left = read()
    assert code == 0
    assert [row.get("body") or row["body_base64"] for row in left] == ["schön", "/wA="]
    assert read() == (3, [])


def test_files_that_maintenance_has_removed_meanwhile_are_read_from_the_newest_version(warehouse: Path) -> None:
    place = f"{warehouse}/topics/orders"
    reader = Topic(place)
    cursors = {queue: Cursor() for queue in reader.queues()}
    compact(warehouse, "orders")
    DeltaTable(place).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    found = reader.next(cursors)
    assert found is not None
    assert sorted(found.rows["message_id"].to_pylist()) == sorted(ALL + NORMAL)
    some = [{"source": "half", "source_queue": 0, "source_offset": 1, "source_index": 0}]
    assert reader.find(some)["message_id"].to_pylist() == ["m1"]


def made_again(warehouse: Path) -> None:
    """Delete the topic's table, and make it with three rows, each of a commit of its own."""
    shutil.rmtree(warehouse / "topics" / "orders")
    for number in range(3):
        write(warehouse, "orders", [message(number, message_id=f"new{number}")])


@pytest.mark.parametrize("batched", [False, True])
def test_a_consumer_ends_where_its_topic_was_made_again_and_passes_no_row_of_it(tmp_path: Path, batched: bool) -> None:
    write(tmp_path / "warehouse", "orders", [message(7)])
    with consumer(tmp_path / "warehouse", follow=True) as messages:
        found = messages.batches() if batched else messages
        next(found).done()
        made_again(tmp_path / "warehouse")
        with pytest.raises(WarehouseError, match="was deleted and made again"):
            next(found)


def test_a_group_does_not_go_on_in_a_topic_that_was_made_again_until_it_is_rewound(warehouse: Path) -> None:
    """Where the group is says nothing about rows of now: those before it would never come."""
    put_off(warehouse, "m1", "n0")
    made_again(warehouse)
    conf = from_mapping({"warehouse": str(warehouse)})
    told = "the topic orders was deleted and made again since the group 'points' .*groups --topic orders --group points"
    with pytest.raises(WarehouseError, match=told):
        ids(warehouse)
    with pytest.raises(WarehouseError, match=told):
        unfinished(conf, "orders", "points")
    assert overview.groups(conf)["behind"].to_pylist() == [None]
    overview.rewind(conf, "orders", "points", "first")
    assert ids(warehouse) == ["new0", "new1", "new2"]
    assert ids(warehouse) == []
    assert overview.groups(conf).select(["waiting", "dead"]).to_pylist() == [{"waiting": 0, "dead": 0}], "none comes"


@pytest.mark.parametrize("leaves", [False, True], ids=["has its turn", "leaves"])
def test_an_instance_that_reads_the_table_of_before_a_rewind_moves_no_cursor_and_ends(
    tmp_path: Path, leaves: bool
) -> None:
    """It would pass first rows: the group's state is about the table of now, what it has read about the one before."""
    warehouse = tmp_path / "warehouse"
    write(warehouse, "orders", [message(number) for number in range(2)])
    messages = consumer(warehouse, follow=True, lease="1m" if leaves else "1s")  # its turn comes with the lease
    read = [next(messages), next(messages)]
    made_again(warehouse)
    overview.rewind(from_mapping({"warehouse": str(warehouse)}), "orders", "points", "first")
    for each in read:
        each.done()
    if leaves:
        messages.close()
    else:
        wait_for(lambda: not any(thread.name.startswith("commitlake-consumer-") for thread in threading.enumerate()))
        with pytest.raises(ConsumerError, match="the table of the topic orders was deleted and made again"):
            messages.close()
    assert ids(warehouse) == ["new0", "new1", "new2"]
