"""Large files and long histories in bounded memory, in order, whatever their rows are."""

from __future__ import annotations

import io
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from tests.support import topic_table
from tests.support.topic_table import SCHEMA, compact, message, put_off, rest, table, write

import commitlake
from commitlake import config
from commitlake.clients.consumer import overview, plan, tables
from commitlake.clients.consumer import topic as topic_module
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.receipts import SCHEMA as RECEIPTS
from commitlake.clients.consumer.receipts import Attempt, Receipt, Receipts, table_of
from commitlake.clients.consumer.rows import Rows
from commitlake.clients.consumer.topic import Topic
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.config import from_mapping
from commitlake.errors import ArgumentError, WarehouseError
from commitlake.protocol.clock import now_ms
from commitlake.reading.parquet import ParquetRows
from commitlake.reading.table import Snapshot


def repeated(begin: int, count: int, body: bytes) -> pa.RecordBatch:
    """Normal messages of one queue that all have the same body."""
    at = pa.array(np.full(count, 1_767_225_600_000_000), pa.timestamp("us", "UTC"))
    offsets = pa.array(np.arange(begin, begin + count))
    given = {
        **{"queue_id": pa.repeat(0, count), "message_id": pa.array(f"m{n}" for n in range(begin, begin + count))},
        **{"body": pa.repeat(body, count), "source": pa.repeat("messages", count), "source_queue": pa.repeat(0, count)},
        **{"source_offset": offsets, "source_index": pa.repeat(0, count), "stored_at": at, "visible_at": at},
    }
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in SCHEMA]
    return pa.record_batch(columns, schema=SCHEMA)


def test_a_small_file_of_more_than_two_gigabytes_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Equal bodies stand in it once; one binary array can't hold them all."""
    write(tmp_path, "orders", [])
    place = str(tmp_path / "topics" / "orders")
    batches = (repeated(begin, 250, b"." * 100_000) for begin in range(0, 22_000, 250))
    write_deltalake(place, pa.RecordBatchReader.from_batches(SCHEMA, batches), mode="append", target_file_size=1 << 30)
    assert len(DeltaTable(place).file_uris()) == 1
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    reader, cursor, count = Topic(place), Cursor(), 0
    for _ in range(10):
        found = reader.next({0: cursor})
        assert found is not None
        assert found.rows.nbytes <= plan.WINDOW_BYTES + 200_000
        assert pool.bytes_allocated() - before < 100 << 20
        assert found.rows["source_offset"].to_pylist() == list(range(count, count + found.rows.num_rows))
        count += found.rows.num_rows
        cursor.join(found.ends[0])
    far = [{"source": "messages", "source_queue": 0, "source_offset": 21_999, "source_index": 0, "queue_id": 0}]
    assert reader.find(far)["message_id"].to_pylist() == ["m21999"]


@pytest.mark.parametrize("budget", [1, 1 << 20])
def test_rows_of_a_large_mixed_file_come_in_order_window_by_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(plan, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(topic_module, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(topic_module, "BUDGET", budget)
    numbers = [(batch, n) for batch in range(12) for n in range(20)]
    random.Random(3).shuffle(numbers)
    for begin in range(0, len(numbers), 40):
        rows = [message(20 * b + n, batch=b, body=b"." * 500) for b, n in numbers[begin : begin + 40]]
        write(tmp_path, "orders", rows)
    compact(tmp_path, "orders")
    reader, cursor, found = Topic(str(tmp_path / "topics" / "orders")), Cursor(), []
    while (window := reader.next({0: cursor})) is not None:
        assert window.rows.nbytes < 60_000
        found += window.rows["message_id"].to_pylist()
        cursor.join(window.ends[0])
    assert found == [f"m{n}" for n in range(240)]


def test_many_small_files_behind_one_that_was_written_anew_are_not_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance, or an owner who erases a row, writes the first rows last."""
    monkeypatch.setattr(topic_module, "WINDOW_BYTES", 200_000)
    batches, queues = 12, 40
    for batch in range(batches):
        rows = [message(batch * queues + n, batch=batch, queue=n, body=os.urandom(2_000)) for n in range(queues)]
        write(tmp_path, "orders", rows)
    place = str(tmp_path / "topics" / "orders")
    DeltaTable(place).optimize.compact(partition_filters=[("queue_id", "in", [str(n) for n in range(queues // 2)])])
    opened, most = Snapshot.open, 0

    def counted(table: Snapshot, path: str) -> pa.NativeFile:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))
        return opened(table, path)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(Snapshot, "open", counted)
    reader, cursors, found = Topic(place), {queue: Cursor() for queue in range(queues)}, []
    while (window := reader.next(cursors)) is not None:
        found += window.rows["message_id"].to_pylist()
        for queue, end in window.ends.items():
            cursors[queue].join(end)
    assert found == [f"m{n}" for n in range(batches * queues)]
    assert most - before < 20


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_the_oldest_unfinished_messages_are_found_in_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    numbers = list(range(40))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        write(tmp_path, "orders", [message(number, batch=number), message(number + 100, batch=number)])
    opened, paths = Snapshot.open, list[str]()
    monkeypatch.setattr(Snapshot, "open", lambda table, path: paths.append(path) or opened(table, path))  # type: ignore[func-returns-value]
    found = unfinished(config.from_mapping({"warehouse": str(tmp_path)}), "orders", "nobody", limit=limit)
    expected = [*(f"m{number}" for number in range(40)), *(f"m{number + 100}" for number in range(40))]
    assert found["message_id"].to_pylist() == expected[:limit]
    assert len([path for path in paths if path.endswith(".parquet")]) <= 2 * limit + 1


class UnsteadyFile(io.FileIO):
    """A file of a store that is away at some reads."""

    fails = 0

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1) -> bytes:
        if self.fails > 0:
            self.fails -= 1
            raise OSError("the store is away")
        return super().read(-1 if size is None else size)


@pytest.mark.parametrize("outage", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 8])
def test_after_an_outage_in_the_middle_of_a_file_reading_goes_on_at_the_same_row(
    tmp_path: Path, at: int, width: int, outage: int
) -> None:
    schema = pa.schema([("n", pa.int64()), ("body", pa.binary())])
    bodies = [np.random.default_rng(number).bytes(1 << 20) for number in range(16)]  # two make a batch
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"n": range(16), "body": bodies}, schema),
        path,
        use_dictionary=False,
        compression="none",
        data_page_size=1 << 20,
        write_batch_size=1,
    )
    with UnsteadyFile(path) as file:
        rows, found, tries = ParquetRows(pa.PythonFile(file, "r"), schema, {}, "body"), list[int](), 0
        while len(found) < 16:
            if len(found) >= at and not tries:
                file.fails = outage
            try:
                asked = np.arange(len(found), min(16, len(found) + width))
                found += rows.take(asked, 64 << 20)["n"].to_pylist()
            except OSError:
                tries += 1
    assert found == list(range(16))
    assert 1 <= tries <= outage


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("commits", [1, 3, 12])
def test_a_table_that_was_made_again_is_not_mixed_with_the_one_before(
    tmp_path: Path, commits: int, has_checkpoint: bool
) -> None:
    """Its log may be shorter by now, or longer: then its first commits would be taken for those that were read."""
    for number in range(2):
        write(tmp_path, "orders", [message(number)])
    reader = Topic(str(tmp_path / "topics" / "orders"))
    assert reader.queues() == {0}
    shutil.rmtree(tmp_path / "topics" / "orders")
    for number in range(commits):
        write(tmp_path, "orders", [message(100 + number)])
    if has_checkpoint:
        DeltaTable(str(tmp_path / "topics" / "orders")).create_checkpoint()
    for _ in range(2):
        with pytest.raises(WarehouseError, match=r"topics/orders was deleted and made again while .*; start again"):
            reader.refresh()
        with pytest.raises(WarehouseError, match="was deleted and made again"):
            reader.next({0: Cursor()})


def test_who_begins_beside_another_has_the_table_of_now(tmp_path: Path) -> None:
    """Others of the process hold a snapshot of it, whose columns and table stay as they were."""
    place = tmp_path / "topics" / "orders"
    write(tmp_path, "orders", [message(0)])
    first = Topic(str(place))
    DeltaTable(str(place)).alter.add_columns([Field("more", PrimitiveType("string"))])
    second = Topic(str(place))
    assert second.schema.names == [*first.schema.names, "more"]
    shutil.rmtree(place)
    for number in range(2):
        write(tmp_path, "orders", [message(number)])  # up to the same version
    assert DeltaTable(str(place)).version() == 2
    assert Topic(str(place)).id != second.id


def test_rows_that_are_kept_for_other_groups_are_bounded_however_many_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[Any, pa.Table] = {}
    monkeypatch.setattr(topic_module, "_RECENT", kept)
    monkeypatch.setattr(topic_module, "_MOST_RECENT", 3)
    readers = []
    for name in ("orders", "bills"):
        write(tmp_path, name, [message(n, batch=0, queue=n) for n in range(2)])
        readers.append(Topic(str(tmp_path / "topics" / name)))
        window = readers[-1].next({0: Cursor(), 1: Cursor()})
        assert window is not None
        assert window.rows["message_id"].to_pylist() == ["m0", "m1"]
    assert len(kept) == 3


def test_a_table_whose_first_commits_are_gone_from_its_log_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(0)])
    place = tmp_path / "topics" / "orders"
    DeltaTable(str(place)).create_checkpoint()
    reader = Topic(str(place))
    (place / "_delta_log" / f"{0:020}.json").unlink()
    write(tmp_path, "orders", [message(1)])
    assert reader.refresh()
    assert not reader.refresh()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_local_tables_are_read_without_a_file_system_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A thread of Arrow's that lets go of one while the process ends takes the process down with SIGABRT."""

    def refuse(*_: object) -> None:
        raise AssertionError

    write(tmp_path / "warehouse", "orders", [message(1)])
    monkeypatch.setattr("deltalake.fs.DeltaStorageHandler", refuse)
    settings = {"warehouse": f"{scheme}{tmp_path}/warehouse"}
    with commitlake.consume(settings, "orders", group="points", follow=False) as messages:
        next(messages).retry("1h")
    conf = config.from_mapping(settings)
    assert unfinished(conf, "orders", "points").num_rows == 1
    assert overview.groups(conf)["waiting"].to_pylist() == [1]
    assert Snapshot(f"{settings['warehouse']}/topics/orders").dataset().to_table().num_rows == 1


def receipts(place: Path, group: str = "points") -> Receipts:
    return Receipts(f"{place}_receipts/receipts", group, "orders")


def rows(numbers: range, state: str, attempt: int, *, age_s: int = 0, group: str = "points") -> pa.Table:
    at = datetime.fromtimestamp(time.time() - age_s, UTC)
    given = {
        **{"consumer_group": group, "topic": "orders", "queue_id": 0, "message_id": "m", "batch_id": 1},
        **{"source": "half", "source_queue": 0, "source_index": 0, "state": state, "attempt": attempt, "round": 0},
        **{"due_at": at, "at": at},
    }
    offsets = pa.array(numbers, pa.int64())
    columns = [
        offsets if f.name == "source_offset" else pa.repeat(pa.scalar(given.get(f.name), f.type), len(numbers))
        for f in RECEIPTS
    ]
    return pa.table(columns, schema=RECEIPTS)


def waiting(table: Receipts) -> list[int]:
    return sorted(row["source_offset"] for row in table.waiting())


def test_retries_that_are_long_done_cost_nothing(tmp_path: Path) -> None:
    table = receipts(tmp_path / "w")
    table.append(rows(range(200_000), "RETRY", 1))
    table.append(rows(range(199_998), "DONE", 2))
    assert waiting(table) == [199_998, 199_999]
    begun = time.process_time()
    for _ in range(20):
        table.waiting()
    assert time.process_time() - begun < 1
    table.append(rows(range(199_998, 199_999), "DONE", 2))
    assert waiting(table) == [199_999]
    tables.compact(DeltaTable(f"{tmp_path}/w_receipts/receipts"))
    assert waiting(table) == [199_999]


@pytest.mark.parametrize("count", [3, 100])
def test_receipts_of_several_groups_stand_in_one_table_each_with_its_message(tmp_path: Path, count: int) -> None:
    """A few are cut out one by one, many are taken together."""
    groups, at = [receipts(tmp_path / "w", name) for name in "ab"], 1_767_225_600_123
    tables = [Rows(table([message(n, keys=None) for n in range(k, k + count)])).of_receipts for k in (0, 1_000)]
    place = tables[1].schema.get_field_index("message_id")
    of_an_owner = tables[1].schema.set(place, pa.field("message_id", pa.large_string(), nullable=False))
    tables[1] = tables[1].cast(of_an_owner)
    retry, done = Attempt("RETRY", 2, 1, at + 5_000, "why", at), Attempt("DONE", 1, 0, None, None, at)
    evens, odds = range(0, count, 2), range(1, count, 2)
    given = [[Receipt(each, evens, retry), Receipt(each, odds, done)] for each in tables]
    found = table_of(zip(groups, given, strict=True)).to_pylist()
    assert len(found) == 2 * count
    for row in found:
        number, due = row["source_offset"], row["due_at"] and int(row["due_at"].timestamp() * 1_000)
        state = ("DONE", 1, 0, None, None) if number % 2 else ("RETRY", 2, 1, at + 5_000, "why")
        assert (row["state"], row["attempt"], row["round"], due, row["remark"]) == state
        assert (row["message_id"], row["consumer_group"]) == (f"m{number}", "a" if number < 1_000 else "b")
        assert (row["topic"], row["keys"], int(row["at"].timestamp() * 1_000)) == ("orders", None, at)


def test_of_several_receipts_the_highest_round_and_attempt_counts_in_any_order(tmp_path: Path) -> None:
    table = receipts(tmp_path / "w")
    table.append(rows(range(3), "RETRY", 2))
    assert waiting(table) == [0, 1, 2]
    table.append(rows(range(1), "DONE", 1))
    table.append(rows(range(1, 2), "DONE", 2))
    table.append(rows(range(2, 3), "DEAD", 2))
    assert (waiting(table), [row["source_offset"] for row in table.dead()]) == ([0], [2])
    assert waiting(receipts(tmp_path / "w")) == [0]


def test_old_receipts_go_but_for_what_is_not_done(tmp_path: Path) -> None:
    table = receipts(tmp_path / "w")
    day = 86_400
    table.append(rows(range(10), "DONE", 1, age_s=9 * day))
    table.append(rows(range(10, 12), "DEAD", 16, age_s=9 * day))
    table.append(rows(range(12, 14), "RETRY", 1, age_s=9 * day))
    table.append(rows(range(13, 14), "DONE", 2, age_s=day))
    others = receipts(tmp_path / "w", "o'brien")
    others.append(rows(range(10), "DONE", 1, age_s=9 * day, group="o'brien"))
    table.expire(now_ms() - 2 * day * 1_000)
    kept = DeltaTable(f"{tmp_path}/w_receipts/receipts").to_pyarrow_table().to_pylist()
    mine = sorted((row["source_offset"], row["state"]) for row in kept if row["consumer_group"] == "points")
    assert mine == [(10, "DEAD"), (11, "DEAD"), (12, "RETRY"), (13, "DONE")]
    assert len(kept) - len(mine) == 10
    for each in (table, receipts(tmp_path / "w")):
        assert (waiting(each), len(each.dead())) == ([12], 2)
    others.expire(now_ms())
    assert len(DeltaTable(f"{tmp_path}/w_receipts/receipts").to_pyarrow_table()) == 4


def asked(place: Path, **arguments: Any) -> list[str]:
    found = unfinished(from_mapping({"warehouse": str(place)}), "orders", "points", **arguments)
    return list(found["message_id"].to_pylist())


@pytest.mark.parametrize("arguments", [{"start": "newest"}, {"tags": "wanted"}])
def test_what_a_group_has_passed_is_not_unfinished(tmp_path: Path, arguments: dict[str, Any]) -> None:
    place = tmp_path / "w"
    write(place, "orders", [message(n, batch=0, queue=n % 2) for n in range(20)])
    assert len(asked(place)) == 20
    assert rest(place, **arguments) == []
    write(place, "orders", [message(20, batch=1), message(21, batch=1, queue=5)])
    assert asked(place) == ["m20", "m21"]


def test_a_question_holds_no_more_than_it_shows_and_knows_dead_letters(tmp_path: Path) -> None:
    place = tmp_path / "w"
    write(place, "orders", [message(n, batch=0, queue=n % 2, tags="it's") for n in range(200)])
    put_off(place, "m7", "m100", most=1)
    write(place, "orders", [message(n, batch=1) for n in range(200, 300)])
    assert asked(place, limit=3) == ["m7", "m100", "m200"]
    assert asked(place, tags="it's") == ["m7", "m100"]
    assert asked(place, where="KEYS = 'k205'") == ["m205"]
    assert len(asked(place)) == 102


def test_a_condition_that_some_row_does_not_fit_is_told_as_such(tmp_path: Path) -> None:
    rows = table([message(1, batch=0)]).append_column("value", pa.array([{"amount": 7}]))
    write_deltalake(tmp_path / "topics" / "orders", rows, partition_by=["queue_id"])
    with pytest.raises(ArgumentError, match=r"where: \"value.amount > 'abc'\" can't be used: Conversion Error"):
        asked(tmp_path, where="value.amount > 'abc'")


def test_each_that_waits_for_a_commit_is_told_its_failure(tmp_path: Path) -> None:
    groups = [receipts(tmp_path / "w", f"g{number}") for number in range(20)]
    os.rename(tmp_path / "w_receipts", tmp_path / "away")

    def write(number: int) -> None:
        with pytest.raises(FileNotFoundError, match="is away"):
            groups[number].append(rows(range(1), "RETRY", 1, group=f"g{number}"))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(write, range(20)))
    os.rename(tmp_path / "away", tmp_path / "w_receipts")
    groups[0].append(rows(range(1), "RETRY", 1, group="g0"))
    assert [waiting(group) for group in groups] == [[0], *[[]] * 19]


def test_fields_that_a_schema_gains_disturb_no_reader(tmp_path: Path) -> None:
    """One that has begun before does not see them, one that begins beside it does; in older files they are null."""
    place = tmp_path / "topics" / "orders"

    def add(number: int, value: dict[str, Any]) -> None:
        rows = table([message(number, batch=number)]).append_column("value", pa.array([value]))
        write_deltalake(place, rows, mode="append", schema_mode="merge")

    def values(reader: Topic, cursor: Cursor) -> list[Any]:
        window = reader.next({0: cursor})
        assert window is not None
        cursor.join(window.ends[0])
        return list(window.rows["value"].to_pylist())

    write(tmp_path, "orders", [])
    add(0, {"id": 1})
    begun, cursor = Topic(str(place)), Cursor()
    assert values(begun, cursor) == [{"id": 1}]
    topic_table.add_field(place, "value", "more")
    assert values(Topic(str(place)), Cursor()) == [{"id": 1, "more": None}]
    add(1, {"id": 2, "more": "m"})
    begun.refresh()
    assert values(begun, cursor) == [{"id": 2}]
