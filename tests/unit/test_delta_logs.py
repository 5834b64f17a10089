"""Logs of Delta tables: which commits a start, a backup and maintenance find, and the spans of a table's messages."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from commitlake.errors import WarehouseError
from commitlake.spark.files import FileSystem
from commitlake.tables import commits, together
from commitlake.tables.commits import landed_after
from commitlake.tables.spans import Span, joined
from commitlake.tools import backup


class Log:
    """A table's log in memory, as `FileSystem` reads it; counts the files that are looked at."""

    def __init__(self, *markers: Mapping[str, Any] | str | None, checkpoint: int | None = None) -> None:
        self.looks, self.files = 0, dict[str, str]()
        for each in markers:
            self.add(each)
        if checkpoint is not None:
            self.files = {name: text for name, text in self.files.items() if int(name[:20]) >= checkpoint}
            self.files["_last_checkpoint"] = json.dumps({"version": checkpoint})

    def add(self, marker: Mapping[str, Any] | str | None) -> None:
        text = marker if isinstance(marker, str) else json.dumps(marker)
        info = {"operation": "WRITE"} | ({} if marker is None else {"userMetadata": text})
        self.files[f"{len(self.files):020}.json"] = json.dumps({"commitInfo": info}, separators=(",", ":"))

    def exists(self, name: str) -> bool:
        self.looks += 1
        return name in self.files

    def read(self, name: str) -> str | None:
        self.looks += 1
        return self.files.get(name)

    def names(self, name: str) -> list[str]:
        assert not name
        self.looks += len(self.files)
        return list(self.files)

    def is_later(self, landing_id: int) -> bool:
        return landed_after(cast("FileSystem", self), landing_id)


def landing(number: int) -> dict[str, Any]:
    return {"landing_id": number}


def batch(number: int, after: int | None = None) -> dict[str, Any]:
    return {"batch_id": number} if after is None else {"batch_id": number, "after": after}


@pytest.mark.parametrize(
    ("commits", "is_later"),
    [
        ([None, landing(5)], False),
        ([None, landing(5), landing(6)], True),
        ([None, landing(6), batch(1, after=6)], True),
        ([None, landing(5), batch(1, after=5), None, None], False),
        ([None, landing(6), batch(1)], True),
        ([None, landing(5), batch(1), "an owner's own text"], False),
        ([None, *[batch(n, after=5) for n in range(50)]], False),
    ],
)
def test_the_newest_landing_of_a_table_is_in_its_newest_commits(commits: list[Any], is_later: bool) -> None:
    assert Log(*commits).is_later(5) == is_later


@pytest.mark.parametrize("commits", [[None], [None, batch(1)], [landing(5), *[None] * 30], [{"landing_id": "5"}]])
def test_what_the_log_does_not_tell_may_be_later(commits: list[Any]) -> None:
    assert Log(*commits).is_later(5)


def test_a_log_whose_older_commits_are_gone_begins_at_its_checkpoint() -> None:
    commits = [*map(landing, range(200))]
    assert Log(*commits, checkpoint=150).is_later(198)
    assert not Log(*commits, checkpoint=199).is_later(199)
    gone = Log(*commits, checkpoint=199)
    del gone.files[f"{199:020}.json"]
    assert gone.is_later(199)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": null}', '{"version": 7}'])
def test_a_checkpoint_that_is_damaged_or_points_ahead_does_no_harm(text: str) -> None:
    log = Log(landing(5), landing(6))
    log.files["_last_checkpoint"] = text
    assert log.is_later(5)


def test_a_marker_in_another_commit_than_an_append_says_nothing() -> None:
    log = Log(landing(6), landing(5))
    log.files[f"{1:020}.json"] = log.files[f"{1:020}.json"].replace("WRITE", "OPTIMIZE")
    assert log.is_later(5)


@given(st.integers(1, 400), st.integers(0, 400))
def test_the_newest_commit_is_found_with_few_looks_however_long_the_log_is(count: int, checkpoint: int) -> None:
    log = Log(*map(landing, range(count)), checkpoint=min(checkpoint, count - 1))
    assert not log.is_later(count - 1)
    assert log.looks <= 24
    assert log.is_later(count - 2)


def test_a_commit_is_cut_at_its_line_ends_alone() -> None:
    """Delta writes U+2028 as it is, for example in the statistics of a string; Python takes it for a line's end."""
    actions = [{"add": {"path": "a.parquet", "stats": "x\u2028y\x85z"}}, {"remove": {"path": "b.parquet"}}]
    log = Log()
    log.files[f"_delta_log/{7:020}.json"] = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in actions)
    assert commits.actions_of(cast("FileSystem", log), 7) == actions


class Tables:
    """Tables that one coordinator writes."""

    def __init__(self) -> None:
        self._written, self.logs = together.Written(), defaultdict[str, Log](Log)

    def append(self, name: str, **marker: int) -> None:
        self.logs[name].add(self._written.note(name, marker))

    def check(self) -> None:
        together.check(lambda name: cast("FileSystem", self.logs[name]))


@pytest.fixture
def tables() -> Tables:
    """A topic that got a message of a batch once, and then one of each landing."""
    found = Tables()
    found.append("x", batch_id=0)
    found.append("batches", batch_id=0)
    for landing in range(1, 200):
        found.append("x", landing_id=landing)
        found.append("positions", landing_id=landing)
    return found


def test_a_start_looks_at_the_newest_commits_only(tables: Tables) -> None:
    tables.append("batches", batch_id=1)
    tables.check()
    assert sum(log.looks for log in tables.logs.values()) < 70


@pytest.mark.parametrize("marker", [{"landing_id": 3}, {"landing_id": "mine"}, {"landing_id": None}, "fixed", "[1]"])
def test_commits_of_a_topics_owner_refuse_no_start(tables: Tables, marker: Mapping[str, Any] | str) -> None:
    tables.logs["x"].add(marker)
    tables.check()


def test_a_table_that_lacks_a_landing_is_refused(tables: Tables) -> None:
    del tables.logs["x"].files[f"{199:020}.json"]
    told = "the table x is older than positions, which says that landing_id 199 .* it ends with 198: this is a copy"
    with pytest.raises(WarehouseError, match=told) as refused:
        tables.check()
    assert "put back" not in str(refused.value)


def test_an_owner_who_put_back_an_older_table_may_go_on() -> None:
    tables = Tables()
    for number in range(3):
        tables.append("topics/x", batch_id=number)
        tables.append("batches", batch_id=number)
        tables.append("topics/x", landing_id=number)
        tables.append("positions", landing_id=number)
    for version in (5, 4):
        del tables.logs["topics/x"].files[f"{version:020}.json"]
    with pytest.raises(WarehouseError, match="you have put back an older table") as refused:
        tables.check()
    given = re.search(r"'(\{.*?\})'", str(refused.value))
    assert given
    tables.logs["topics/x"].add(given[1])
    tables.check()


def append(place: Path, marker: str, **row: object) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": marker})
    rows = pa.Table.from_pylist([row or {"n": 1}])
    write_deltalake(place, rows, mode="append", commit_properties=properties)


@pytest.mark.parametrize("own", ["nightly fix", "[1]", '{"batch_id":"mine"}', '{"batch_id":null}'])
def test_an_owners_commits_are_none_of_a_batch(tmp_path: Path, own: str) -> None:
    for marker in ('{"batch_id":1}', '{"landing_id":7}', '{"batch_id":2}', '{"landing_id":8}', own):
        append(tmp_path, marker)
    log = backup._Log(tmp_path)
    assert log.newest("batch_id") == 2
    assert (log.end_before("batch_id", 1), log.version) == (8, 1)


def test_a_checkpoint_in_json_is_no_commit(tmp_path: Path) -> None:
    append(tmp_path, "")
    (tmp_path / "_delta_log" / f"{0:020}.checkpoint.0a1b-2c.json").write_text(json.dumps({}))
    assert backup._Log(tmp_path).version == 0


def test_what_went_to_kafka_of_later_versions_than_the_copied_one_is_forgotten(tmp_path: Path) -> None:
    place = tmp_path / "warehouse"
    for name in (*backup._FIRST, *backup._OTHERS):
        if name not in ("destinations", "forwarded"):
            append(place / name, "{}")
    for topic in ("orders", "points"):
        append(place / "destinations", "{}", topic=topic, table=f"topics/{topic}")
        for batch in range(3):
            append(place / "topics" / topic, f'{{"batch_id":{batch}}}')
    append(place / "batches", '{"batch_id":1}')  # the third is not complete, so it is left out
    for number in range(1, 4):
        append(place / "forwarded", "", topic="orders", target="sent", next_version=number)
    append(place / "forwarded", "", topic="points", target="sent", next_version=2)
    append(place / "forwarded", "", topic="gone", target="sent", next_version=9)
    copied = backup.backup(str(place), tmp_path / "copy")
    assert copied.batch_id == 1
    assert DeltaTable(tmp_path / "copy/topics/orders").version() == 1
    rows = DeltaTable(tmp_path / "copy/forwarded").to_pyarrow_table().to_pylist()
    sent = sorted((row["topic"], row["next_version"]) for row in rows)
    assert sent == [("gone", 9), ("orders", 1), ("orders", 2), ("points", 2)]


OFFSETS = st.one_of(st.integers(0, 50_000), st.integers(0, 10**9))
SPANS = st.lists(
    st.builds(lambda queue, low, length: Span(queue, low, low + length), st.integers(0, 2), OFFSETS, st.integers(0, 9)),
    max_size=80,
)


@given(SPANS)
def test_few_spans_with_ends_at_places_cover_every_place(spans: list[Span]) -> None:
    found = joined(spans)
    assert len(found) <= 16 + len({span.queue for span in spans})
    for span in spans:
        assert [one for one in found if one.queue == span.queue and one.low <= span.low and span.high <= one.high]
    assert {(span.queue, span.low) for span in found} <= {(span.queue, span.low) for span in spans}
    assert {(span.queue, span.high) for span in found} <= {(span.queue, span.high) for span in spans}


def test_an_old_message_and_new_ones_leave_what_lies_between_out() -> None:
    new = [Span(0, 9_000_000, 9_000_100), Span(0, 9_000_050, 9_000_400)]
    assert joined([*new, Span(1, 5, 5), Span(0, 17, 17)]) == [
        Span(0, 17, 17), Span(0, 9_000_000, 9_000_400), Span(1, 5, 5)
    ]  # fmt: skip


def test_places_less_than_a_segment_apart_are_one_span() -> None:
    assert joined([Span(0, 0, 10), Span(0, 16_000, 16_010)]) == [Span(0, 0, 16_010)]
