"""What CONTRIBUTING.md, the folders and tests/rules.md say, and that tests keep to it: names of things that exist."""

from __future__ import annotations

import ast
import re
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.changed import ROOT, TESTS, files_of, needed_by
from tests.support import core_seconds, tables
from tests.support.core_seconds import Slowness
from tests.support.polling import wait_for

PACKAGE = ROOT / "lib" / "commitlake"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_what_the_table_of_places_names_exists() -> None:
    rows = re.findall(r"^\| (.*?) \|", section("Where things are"), re.MULTILINE)
    named = re.findall(r"`([\w./-]+)`", " ".join(rows))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("folder", sorted(path.parent for path in PACKAGE.rglob("__init__.py")), ids=str)
def test_a_folder_says_what_it_is_for_and_names_files_that_exist(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert said and len(said.splitlines()) <= 5
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", said):
        assert (folder / path).exists() or (PACKAGE / path).exists(), path


def test_the_first_line_of_a_file_says_what_it_holds() -> None:
    files = (file for file in PACKAGE.rglob("*.py") if not re.match(r'"""\S.{10,}', file.read_text()))
    assert [str(file) for file in files] == []


def test_the_walk_of_a_message_names_functions_that_exist() -> None:
    steps = re.findall(r"^\d+\. `(\S+)` `(\w+)`: ", section("One message through the code"), re.MULTILINE)
    assert len(steps) > 20
    for file, name in steps:
        assert re.search(rf"^\s*(def|class) {name}\b", (PACKAGE / file).read_text(), re.MULTILINE), (file, name)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of git")
def test_git_keeps_nothing_that_it_ignores() -> None:
    """A link named .venv was once in a commit: checked out, it took the place of the environment."""
    words = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


HERE = ROOT / "tests"
RULES = (HERE / "rules.md").read_text()
CONTRACT = (ROOT / "docs" / "contract.md").read_text()


def test_each_test_that_shows_a_rule_exists() -> None:
    named = re.findall(r"`(\w+/\w+\.py)(?:::(\w+))?`", RULES)
    assert len(named) > 100
    missing = [(file, name) for file, name in named if f"def {name}" not in (HERE / file).read_text()]
    assert missing == []


def test_each_section_of_rules_has_its_tests() -> None:
    titles = re.findall(r"^### (4\.\d+ .+)$", CONTRACT, re.MULTILINE)
    assert re.findall(r"^## (4\.\d+ .+)$", RULES, re.MULTILINE) == titles
    sections = re.findall(r"^### (2\.\d+) ", CONTRACT, re.MULTILINE)
    assert sorted({number for number in re.findall(r"^\| (2\.\d+) ", RULES, re.MULTILINE)}) == sections


def test_the_table_names_each_file_of_the_tests_that_start_something() -> None:
    named = {file for folder in TESTS for file in files_of(folder)}
    slow = (
        path for part in ("spark", "recovery", "e2e", "steady") for path in (ROOT / "tests" / part).glob("test_*.py")
    )
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in slow)


def test_the_table_has_each_folder_of_the_package() -> None:
    package = ROOT / "lib/commitlake"
    files = [path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py"]
    without = {file for file in files if not any(folder in TESTS for folder in map(str, file.parents))}
    assert without == {Path("errors.py")}
    assert all((package / folder).exists() or (ROOT / folder).exists() for folder in TESTS)


@pytest.mark.parametrize(
    ("path", "some"),
    [
        ("lib/commitlake/coordinator/landing/land.py", "tests/recovery/test_landing_recovery.py"),
        ("lib/commitlake/coordinator/round.py", "tests/recovery/test_corners.py"),
        ("tests/spark/test_audit.py", "tests/spark/test_audit.py"),
        ("tests/support/lake.py", "tests/spark/test_coordination_rules.py"),
        ("spark-submit.sh", "tests/e2e/test_launch.py"),
    ],
)
def test_a_changed_path_brings_its_tests(path: str, some: str) -> None:
    assert some in needed_by([path])


def test_what_is_in_the_short_run_anyway_or_gone_brings_none() -> None:
    assert needed_by(["docs/why.md", "lib/commitlake/errors.py", "tests/spark/test_that_was_deleted.py"]) == []


FILES = sorted(path.relative_to(HERE) for path in HERE.rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    """The folders of tests that a file imports, also inside functions."""
    for node in ast.walk(ast.parse((HERE / file).read_text())):
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


def test_the_sample_is_in_no_order_so_that_it_takes_as_long_as_its_quiet_time_says() -> None:
    """Forty thousand equal numbers take a thirtieth of that, and no day would be a slow one."""
    numbers = core_seconds._SCATTERED
    assert len(set(numbers)) == len(numbers) == 40_000
    falls = sum(after < before for before, after in pairwise(numbers))
    assert 19_000 < falls < 21_000
    begun = time.thread_time()
    sorted(numbers)
    assert time.thread_time() - begun > core_seconds._QUIET_S / 4


def test_slowness_is_never_below_one() -> None:
    slowness = Slowness()
    wait_for(lambda: slowness.count)
    assert slowness.since(0) >= slowness.since(10**9) == 1.0
