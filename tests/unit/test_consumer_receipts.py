"""The receipts of a long history: what waits costs no more with it, old ones go, and questions hold what they show."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.topic_table import message, table, write

import commitlake
from commitlake.clients.consumer import receipts as receipt_table
from commitlake.clients.consumer import tables
from commitlake.clients.consumer.receipts import SCHEMA, Attempt, Receipt, Receipts, table_of
from commitlake.clients.consumer.rows import Rows
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.config import from_mapping
from commitlake.protocol.clock import now_ms


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
        for f in SCHEMA
    ]
    return pa.table(columns, schema=SCHEMA)


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


def test_few_receipts_become_the_same_rows_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, at = Rows(table([message(0), message(1, batch=3, keys=None)])).of_receipts, 1_767_225_600_123
    outcomes = Attempt("RETRY", 2, 1, at + 5_000, "why", at), Attempt("DONE", 1, 0, None, None, at)
    given = [Receipt(messages, [0, 1], outcomes[0]), Receipt(messages, [1], outcomes[1])]
    few = receipts(tmp_path / "w").rows(given)
    assert isinstance(few, list)
    monkeypatch.setattr(receipt_table, "_FEW", 0)
    many = receipts(tmp_path / "w").rows(given)
    assert isinstance(many, pa.Table)
    assert table_of([few]).equals(table_of([many]))


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


def consumed(place: Path, **arguments: Any) -> list[str]:
    with commitlake.consume({"warehouse": str(place)}, "orders", group="points", follow=False, **arguments) as messages:
        ids = []
        for each in messages:
            ids.append(each.message_id)
            each.done()
        return ids


@pytest.mark.parametrize("arguments", [{"start": "newest"}, {"tags": "wanted"}])
def test_what_a_group_has_passed_is_not_unfinished(tmp_path: Path, arguments: dict[str, Any]) -> None:
    place = tmp_path / "w"
    write(place, "orders", [message(n, batch=0, queue=n % 2) for n in range(20)])
    assert len(asked(place)) == 20
    assert consumed(place, **arguments) == []
    write(place, "orders", [message(20, batch=1), message(21, batch=1, queue=5)])
    assert asked(place) == ["m20", "m21"]


def test_a_question_holds_no_more_than_it_shows_and_knows_dead_letters(tmp_path: Path) -> None:
    place = tmp_path / "w"
    write(place, "orders", [message(n, batch=0, queue=n % 2, tags="it's") for n in range(200)])
    with commitlake.consume({"warehouse": str(place)}, "orders", group="points", follow=False) as messages:
        for each in messages:
            each.retry(most=1) if each.message_id in ("m7", "m100") else each.done()
    write(place, "orders", [message(n, batch=1) for n in range(200, 300)])
    assert asked(place, limit=3) == ["m7", "m100", "m200"]
    assert asked(place, tags="it's") == ["m7", "m100"]
    assert asked(place, where="KEYS = 'k205'") == ["m205"]
    assert len(asked(place)) == 102


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
