"""What CONTRIBUTING.md and the folders say of the package: files and functions that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
