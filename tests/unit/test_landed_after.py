"""Whether a landing may have written to a table later, by the newest commits of its log."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlake.spark.files import FileSystem
from commitlake.tables.commits import landed_after


class Log:
    """A table's log; counts what is asked."""

    def __init__(self, *markers: dict[str, Any] | str | None, checkpoint: int | None = None) -> None:
        self.asked = 0
        texts = [each if isinstance(each, str) or each is None else json.dumps(each) for each in markers]
        infos = [{"operation": "WRITE"} | ({} if each is None else {"userMetadata": each}) for each in texts]
        self.files = {
            f"{n:020}.json": json.dumps({"commitInfo": info}, separators=(",", ":")) for n, info in enumerate(infos)
        }
        if checkpoint is not None:
            self.files = {name: text for name, text in self.files.items() if int(name[:20]) >= checkpoint}
            self.files["_last_checkpoint"] = json.dumps({"version": checkpoint})

    def exists(self, name: str) -> bool:
        self.asked += 1
        return name in self.files

    def read(self, name: str) -> str | None:
        self.asked += 1
        return self.files.get(name)

    def names(self, name: str) -> list[str]:
        assert not name
        self.asked += len(self.files)
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
    assert log.asked <= 24
    assert log.is_later(count - 2)
