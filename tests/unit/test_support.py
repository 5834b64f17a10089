"""The helpers that all tests share, and that tests share nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import tables
from tests.support.polling import wait_for

TESTS = Path(__file__).parents[1]
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    """The folders of tests that a file imports, also inside functions."""
    for node in ast.walk(ast.parse((TESTS / file).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("tests."))


def test_a_file_imports_only_from_support_and_its_own_folder() -> None:
    found = {(str(file), name) for file in FILES for name in imported(file) if name != file.parts[0]}
    assert {each for each in found if each[1] not in ("support", "changed")} == set()


def test_a_table_without_a_first_commit_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "topics" / "orders" / "_delta_log").mkdir(parents=True)
    assert tables.rows(tmp_path, "topics/orders") == []
    assert tables.count(tmp_path, "topics/orders") == 0
    assert tables.topics(tmp_path) == []


def test_waiting_ends_with_what_is_found() -> None:
    tries = iter([None, 0, "found"])
    assert wait_for(lambda: next(tries)) == "found"


def test_waiting_in_vain_fails_with_the_reason() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: what there is"):
        wait_for(lambda: False, 0.1, lambda: "what there is")
