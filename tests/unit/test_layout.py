"""The folders of the package are layers: each imports only those before it, so there is no circle."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlake

PACKAGE = Path(__file__).parents[2] / "lib" / "commitlake"
LAYERS = {
    "": (
        ("errors",),
        ("protocol",),
        ("config",),
        ("spark", "reading"),
        ("kafka", "tables"),
        ("clients",),
        ("testing",),
        ("coordinator",),
        ("tools",),
    ),
    "clients": (
        ("daemon_pool", "renamed", "sql", "tracing"),
        ("asyncio_sql", "proof_rows"),
        ("producer", "consumer"),
        ("delta", "gateway"),
    ),
    "coordinator": (
        ("counters", "dedup", "resolving", "restarts", "round_log", "settings_publisher"),
        ("landing",),
        ("coordination", "metrics"),
        ("forwarding", "recovery", "round"),
        ("scheduler",),
        ("maintenance", "rehearsal"),
        ("run",),
        ("optional_services",),
        ("coordinator",),
    ),
    "tools": (
        ("audit", "backup", "findings", "iceberg", "report"),
        ("erase",),
        ("doctor", "demo", "readiness"),
        ("cli",),
    ),
}
"""Of the package and of some folders, the lowest first; what stands in one line does not import each other."""
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room(folder: str, file: Path) -> str:
    """What of a folder a file is in: a folder of its own, or itself; "" for the folder's own `__init__.py`."""
    return file.parts[1 if folder else 0].removesuffix(".py").removesuffix("__init__")


TREES = {file: ast.parse((PACKAGE / file).read_text()) for file in FILES}


@pytest.mark.parametrize("folder", LAYERS)
def test_a_file_imports_only_from_lower_folders(folder: str) -> None:
    order = {name: number for number, layer in enumerate(LAYERS[folder]) for name in layer}
    files = {file: room(folder, file) for file in FILES if folder in ("", file.parts[0])}
    above = [
        (str(file), name)
        for file, own in files.items()
        if own
        for name in imported(folder, file)
        if name != own and order[name] >= order[own]
    ]
    assert above == []


def test_no_file_has_more_than_400_lines() -> None:
    lines = {str(file): len((PACKAGE / file).read_text().splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > 400} == {}


def test_one_file_calls_classes_of_java_by_name() -> None:
    """A platform may hide them; there stands what happens then."""
    assert [str(file) for file in FILES if "._jvm" in (PACKAGE / file).read_text().replace("self._jvm", "")] == [
        "spark/jvm.py"
    ]


def imported(folder: str, file: Path) -> Iterator[str]:
    """What a file imports of a folder, also inside functions and for types only."""
    prefix = ["commitlake", *([folder] if folder else [])]
    rooms = {path.stem for path in (PACKAGE / folder).iterdir()}
    for node in ast.walk(TREES[file]):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if parts[: len(prefix)] == prefix:
                rest = parts[len(prefix) :]
                yield from rest[:1] or [name.name for name in node.names if name.name in rooms]


def test_no_two_classes_have_one_name() -> None:
    classes = (node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    names = Counter(node.name for node in classes)
    assert [name for name, number in names.items() if number > 1] == []


def test_the_demo_uses_public_names_as_an_application_would() -> None:
    for path in (PACKAGE / "tools" / "demo").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "commitlake":
                assert {alias.name for alias in node.names} <= set(commitlake.__all__), path
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("commitlake."):
                assert str(node.module).startswith("commitlake.tools.demo"), path
