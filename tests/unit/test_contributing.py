"""CONTRIBUTING.md names every file of the package once, and only files and functions that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lib" / "commitlake"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def tree() -> Iterator[str]:
    """The paths of the tree, which has two spaces a level; folders end with a slash."""
    folders: list[str] = []
    for line in TEXT.split("## The tree")[1].split("```")[1].strip().splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders[level:] = [name]
        yield "".join(folders[: level + 1])


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_tree_names_every_file_of_the_package_once() -> None:
    listed = sorted(path for path in tree() if path.startswith("lib/") and not path.endswith("/"))
    files = (path for path in PACKAGE.rglob("*.*") if path.name != "__init__.py" and path.suffix != ".pyc")
    assert listed == sorted(str(path.relative_to(ROOT)) for path in files)


def test_the_tree_names_every_folder_of_the_package_once() -> None:
    listed = sorted(path for path in tree() if path.startswith("lib/") and path.endswith("/"))
    assert listed == sorted(f"{path.parent.relative_to(ROOT)}/" for path in PACKAGE.rglob("__init__.py"))


def test_everything_in_the_tree_exists() -> None:
    assert [path for path in tree() if not (ROOT / path).exists()] == []


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
