"""Which tables the commits that come last name, and which warehouses a start takes for mixed copies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from commitlake.errors import WarehouseError
from commitlake.spark.files import FileSystem
from commitlake.tables import together


class Log:
    """A table's log in a local directory, as `FileSystem` reads it; counts the files that are looked at."""

    def __init__(self, place: Path) -> None:
        self._place, self.looks = place, 0
        place.mkdir(exist_ok=True)

    def exists(self, name: str) -> bool:
        self.looks += 1
        return (self._place / name).exists()

    def names(self, name: str) -> list[str]:
        found = [file.name for file in (self._place / name).iterdir()]
        self.looks += len(found)
        return found

    def read(self, name: str) -> str | None:
        self.looks += 1
        return (self._place / name).read_text() if (self._place / name).exists() else None

    def add(self, marker: Mapping[str, Any] | str | None) -> None:
        text = marker if isinstance(marker, str) else json.dumps(marker)
        info = {} if marker is None else {"userMetadata": text}
        number = len(list(self._place.glob("*.json")))
        (self._place / f"{number:020}.json").write_text(json.dumps({"commitInfo": info}, separators=(",", ":")))


class Tables:
    """Tables that one coordinator writes."""

    def __init__(self, root: Path) -> None:
        self._root, self._written, self.logs = root, together.Written(), dict[str, Log]()

    def log(self, name: str) -> Log:
        return self.logs.setdefault(name, Log(self._root / name))

    def append(self, name: str, **marker: int) -> None:
        self.log(name).add(self._written.note(name, marker))

    def check(self) -> None:
        together.check(lambda name: cast("FileSystem", self.log(name)))


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """A topic that got a message of a batch once, and then one of each landing."""
    found = Tables(tmp_path)
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
    tables.log("x").add(marker)
    tables.check()


def test_a_table_that_lacks_a_landing_is_refused(tables: Tables, tmp_path: Path) -> None:
    (tmp_path / "x" / f"{199:020}.json").unlink()
    told = "the table x is older than positions, which says that landing_id 199 .* it ends with 198: this is a copy"
    with pytest.raises(WarehouseError, match=told) as refused:
        tables.check()
    assert "put back" not in str(refused.value)


def test_an_owner_who_put_back_an_older_table_may_go_on(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    (tmp_path / "topics").mkdir()
    for number in range(3):
        tables.append("topics/x", batch_id=number)
        tables.append("batches", batch_id=number)
        tables.append("topics/x", landing_id=number)
        tables.append("positions", landing_id=number)
    (tmp_path / "topics/x" / f"{5:020}.json").unlink()
    (tmp_path / "topics/x" / f"{4:020}.json").unlink()
    with pytest.raises(WarehouseError, match="you have put back an older table") as refused:
        tables.check()
    given = re.search(r"'(\{.*?\})'", str(refused.value))
    assert given
    tables.log("topics/x").add(given[1])
    tables.check()
