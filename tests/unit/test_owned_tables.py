"""Tables that their owners change: what Delta lets them do is read, or refused by its name."""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from tests.support import topic_table
from tests.support.topic_table import message, rest, write

import commitlake
from commitlake import config
from commitlake.clients.consumer import plan
from commitlake.clients.consumer import topic as topic_module
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.overview import groups
from commitlake.clients.consumer.topic import Topic
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.errors import WarehouseError
from commitlake.reading.questions.overview import topics
from commitlake.reading.questions.tables import opened
from commitlake.reading.table import Snapshot

KINDS = {
    "decimal": pa.array([Decimal("9.90")], pa.decimal128(10, 2)),
    "double": pa.array([1.5]),
    "float": pa.array([1.5], pa.float32()),
    "date": pa.array([dt.date(2026, 1, 1)]),
    "short": pa.array([1], pa.int16()),
    "byte": pa.array([1], pa.int8()),
    "timestamp_ntz": pa.array([dt.datetime.fromisoformat("2026-01-01")], pa.timestamp("us")),
    "timestamp": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
    "array": pa.array([[1.5]]),
    "struct": pa.array([{"a": 1.5}]),
    "binary": pa.array([b"x"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_empty", [True, False])
def test_columns_of_all_types_are_read_and_those_of_an_empty_table(tmp_path: Path, kind: str, is_empty: bool) -> None:
    rows = pa.table({"id": ["17"], "more": KINDS[kind]})
    place = tmp_path / "business"
    write_deltalake(place, rows.slice(0, 0) if is_empty else rows)
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT * FROM {tables.outside(str(place))}").to_pylist()
    assert found == ([] if is_empty else rows.to_pylist())


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"array", "struct", "binary"}))
def test_a_partition_may_be_of_any_type(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "business"
    rows = pa.table({"id": ["17", "18"], "more": pa.concat_arrays([KINDS[kind], pa.nulls(1, KINDS[kind].type)])})
    write_deltalake(place, rows, partition_by=["more"])
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT id, more FROM {tables.outside(str(place))} ORDER BY id").to_pylist()
    assert found == rows.to_pylist()


def test_a_directory_above_a_table_that_is_named_like_a_partition_is_none(tmp_path: Path) -> None:
    rows = pa.table({"id": ["17"], "state": ["PAID"], "region": ["eu"]})
    place = tmp_path / "state=NEW" / "region=us" / "business"
    write_deltalake(place, rows, partition_by=["region"])
    with opened(str(tmp_path)) as tables:
        assert tables.rows(f"SELECT * FROM {tables.outside(str(place))}").to_pylist() == rows.to_pylist()


def test_rows_of_a_partition_with_other_letters_are_taken_out_by_a_vector(tmp_path: Path) -> None:
    """Spark writes such a directory, and its name in the log, as it is; deltalake escapes both."""
    place = tmp_path / "business"
    write_deltalake(place, pa.table({"id": ["17", "18"], "region": ["é b", "é b"]}), partition_by=["region"])
    (file,) = place.glob("region=*/*.parquet")
    (place / "region=é b").mkdir()
    file.rename(place / "region=é b" / file.name)
    log = place / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"region=é%20b/{file.name}"
    log.write_text("\n".join(json.dumps(action, ensure_ascii=False) for action in actions))
    topic_table.delete(place, [0])
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT * FROM {tables.outside(str(place))}").to_pylist()
    assert found == [{"id": "18", "region": "é b"}]


@pytest.mark.parametrize("kind", ["double", "decimal(10,2)", "date", "short", "timestamp_ntz"])
def test_a_column_that_the_owner_adds_to_a_topic_is_null_before(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "orders", [message(1, batch=0)])
    DeltaTable(tmp_path / "topics/orders").alter.add_columns([Field("extra", PrimitiveType(kind))])
    with opened(str(tmp_path)) as tables:
        view = tables.topic("orders")
        assert tables.rows(f"SELECT message_id, extra FROM {view}").to_pylist() == [{"message_id": "m1", "extra": None}]
    assert rest(tmp_path) == ["m1"]


@pytest.mark.parametrize("queue", [0, 1])
def test_rows_that_a_deletion_vector_takes_out_are_seen_by_nobody(tmp_path: Path, queue: int) -> None:
    write(tmp_path, "orders", [message(number, batch=number, queue=queue) for number in range(20)])
    topic_table.delete(tmp_path / "topics/orders", [3, 15, 19])
    left = [f"m{number}" for number in range(20) if number not in (3, 15, 19)]
    conf = config.from_mapping({"warehouse": str(tmp_path)})
    assert rest(tmp_path) == left
    assert unfinished(conf, "orders", "other")["message_id"].to_pylist() == left
    assert Topic(str(tmp_path / "topics/orders")).behind({}) == (17, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    places = [message(number, batch=number) for number in (2, 3, 4)]
    assert Topic(str(tmp_path / "topics/orders")).find(places)["message_id"].to_pylist() == ["m2", "m4"]
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT message_id FROM {tables.topic('orders')} ORDER BY batch_id")
        assert found["message_id"].to_pylist() == left
    assert groups(conf)["behind"].to_pylist() == [0]
    write_deltalake(tmp_path / "destinations", pa.table({"topic": ["orders"]}))
    with opened(str(tmp_path)) as tables:
        assert topics(tables)["messages"].to_pylist() == [17]


def test_rows_are_deleted_by_a_vector_while_a_consumer_reads(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(number, batch=number) for number in range(20)])
    with commitlake.consume({"warehouse": str(tmp_path)}, "orders", group="g", poll="50ms") as messages:
        found = [next(messages).message_id]
        write(tmp_path, "orders", [message(number, batch=number) for number in range(20, 40)])
        topic_table.delete(tmp_path / "topics/orders", [0, 2])
        found += [each.message_id for each in islice(messages, 37)]
    assert found == [f"m{number}" for number in range(40) if number not in (20, 22)]


@pytest.mark.parametrize("who", ["it", "another group of the process"])
def test_a_file_that_loses_rows_while_it_is_read_goes_on_behind_the_last_row_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """A retry that is not found, as of a message that was erased, brings the new version in the middle of a file."""
    monkeypatch.setattr(plan, "WINDOW_BYTES", 5_000)
    monkeypatch.setattr(topic_module, "WINDOW_BYTES", 5_000)
    write(tmp_path, "orders", [message(number, batch=number, body=b"." * 1_000) for number in range(20)])
    reader, cursor, found = Topic(str(tmp_path / "topics/orders")), Cursor(), list[str]()
    refreshed = reader if who == "it" else Topic(str(tmp_path / "topics/orders"))
    while (window := reader.next({0: cursor})) is not None:
        found += window.rows["message_id"].to_pylist()
        cursor.join(window.ends[0])
        if found[-1] == window.rows["message_id"][-1].as_py() and len(found) == window.rows.num_rows:
            topic_table.delete(tmp_path / "topics/orders", [0, 1])
            assert refreshed.refresh()
    assert found == [f"m{number}" for number in range(20)]


def test_columns_with_other_names_in_the_files_are_read_and_a_renamed_one_of_a_topic_is_named(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(1, batch=0)])
    place = tmp_path / "topics/orders"
    topic_table.rename(place, "sharding_key", "shard")
    assert rest(tmp_path) == ["m1"]
    topic_table.rename(place, "keys", "business_keys")
    with opened(str(tmp_path)) as tables:
        found = tables.rows(f"SELECT message_id, business_keys FROM {tables.topic('orders')}")
        assert found.to_pylist() == [{"message_id": "m1", "business_keys": "k1"}]
    with pytest.raises(WarehouseError, match=r"topics/orders lacks the columns keys; nobody may rename"):
        rest(tmp_path, group="new")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("variantType-preview", r"a table feature that is not read here: variantType; read are columnMapping, "),
        ("catalogManaged", r"catalog-managed"),
        ("typeOfTomorrow", r"typeOfTomorrow"),
    ],
)
def test_a_feature_that_is_not_read_is_named(tmp_path: Path, name: str, told: str) -> None:
    write(tmp_path, "orders", [message(1, batch=0)])
    topic_table.require(tmp_path / "topics/orders", name)
    with pytest.raises(WarehouseError, match=f"topics/orders.*{told}"):
        rest(tmp_path)
    with opened(str(tmp_path)) as tables, pytest.raises(WarehouseError, match=f"topics/orders.*{told}"):
        tables.topic("orders")


@pytest.mark.parametrize("name", ["typeWidening", "vacuumProtocolCheck"])
def test_a_feature_that_is_not_read_beside_deletion_vectors_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, "orders", [message(1, batch=0)])
    topic_table.require(tmp_path / "topics/orders", name)
    assert rest(tmp_path) == ["m1"]
    topic_table.require(tmp_path / "topics/orders", "deletionVectors", name)
    with pytest.raises(WarehouseError, match=f"that is not read here: {name} beside deletionVectors; read are"):
        rest(tmp_path, group="new")
    with opened(str(tmp_path)) as tables, pytest.raises(WarehouseError, match=f"{name} beside deletionVectors"):
        tables.topic("orders")


def test_a_topic_whose_column_is_renamed_while_it_is_read_is_told(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(1, batch=0)])
    reader = Topic(str(tmp_path / "topics/orders"))
    topic_table.rename(tmp_path / "topics/orders", "queue_id", "q")
    with pytest.raises(WarehouseError, match=r"topics/orders lacks the columns queue_id; "):
        reader.refresh()


def test_a_shallow_clone_is_told(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(1, batch=0)])
    topic_table.clone(tmp_path / "topics/orders", tmp_path / "topics/cloned")
    with pytest.raises(WarehouseError, match=r"topics/cloned is a shallow clone, with files elsewhere"):
        Topic(str(tmp_path / "topics/cloned")).queues()


def test_a_place_that_deltalake_would_die_of_is_named(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"a\[x\]/t is not read; allowed is a directory without '\[' in its path"):
        Snapshot(str(tmp_path / "a[x]" / "t"))


@pytest.mark.parametrize("how", ["update", "merge", "delete"])
def test_retries_come_after_the_owner_has_changed_a_row(tmp_path: Path, how: str) -> None:
    """deltalake writes columns of other types than before: texts as views, of which Arrow can't take rows."""
    write(tmp_path, "orders", [message(number, batch=0) for number in range(10)])
    table = DeltaTable(tmp_path / "topics/orders")
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    if how == "update":
        table.update(predicate="message_id = 'm5'", updates={"keys": "'erased'", "body": "NULL"})
    elif how == "delete":
        table.delete("message_id = 'm5'")
    else:
        wanted = pa.table({"message_id": ["m5"]})
        merging = table.merge(wanted, "t.message_id = s.message_id", source_alias="s", target_alias="t")
        merging.when_matched_update({"keys": "'erased'"}).execute()
    again = set[str]()
    messages = commitlake.consume({"warehouse": str(tmp_path)}, "orders", group="g", poll="20ms")
    too_late = threading.Timer(20, messages.stop)
    too_late.start()
    with messages:
        for each in messages:
            if each.message_id in ("m2", "m7") and each.attempt == 1:
                each.retry("1ms")
                continue
            each.done()
            again |= {str(each.message_id)} if each.attempt == 2 else set()
            if len(again) == 2:
                break
    too_late.cancel()
    assert again == {"m2", "m7"}


def test_what_can_not_be_found_again_is_told_once_a_minute_beside_new_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any) -> None:
        raise OSError("the store is away")

    write(tmp_path, "orders", [message(1, batch=0)])
    monkeypatch.setattr("commitlake.clients.consumer.subscription._PUT_OFF_MS", 50)
    monkeypatch.setattr(Topic, "find", away)
    caplog.set_level(logging.WARNING, logger="commitlake")
    messages = commitlake.consume({"warehouse": str(tmp_path)}, "orders", group="g", poll="20ms")
    threading.Timer(3, messages.stop).start()
    with messages:
        for each in messages:
            each.retry("1ms")
    assert len([told for told in caplog.messages if "the store is away" in told]) == 1
