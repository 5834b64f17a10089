"""How the demo reports differences and shows its progress, and which directories it removes."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from tests.support.holding import held

from commitlake.coordinator.recovery import jvm_lock
from commitlake.errors import FencedError, WarehouseError
from commitlake.tools.cli.demo_directory import fresh
from commitlake.tools.demo.comparison import Comparison
from commitlake.tools.demo.progress import DemoProgress


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
