"""The folders of the package are layers: each imports only those before it, so there is no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lib" / "commitlake"
LAYERS = (
    ("errors", "clock", "places", "terminal", "counters"),
    ("references",),
    ("protocol",),
    ("config_values",),
    ("config_keys",),
    ("config",),
    ("statemachine",),
    ("spark",),
    ("kafka",),
    ("tables", "producer"),
    ("reading",),
    ("consumer",),
    ("questions",),
    ("writing",),
    ("resolving",),
    ("report",),
    ("dedup",),
    ("testing",),
    ("landing",),
    ("coordination",),
    ("forwarding",),
    ("recovery",),
    ("maintenance",),
    ("rounds",),
    ("chain",),
    ("metrics",),
    ("companions",),
    ("coordinator",),
    ("ops",),
    ("demo",),
    ("cli",),
)
"""Lowest first; what stands in one line does not import each other."""
ORDER = {name: number for number, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_folder_imports_only_lower_ones(file: Path) -> None:
    own = layer(file)
    above = {name for name in imported(file) if name != own and ORDER[name] >= ORDER[own]}
    assert above == set()


def test_no_folder_holds_more_than_a_sixth_of_the_code() -> None:
    sizes: dict[str, int] = {}
    for file in FILES:
        sizes[layer(file)] = sizes.get(layer(file), 0) + len((PACKAGE / file).read_text().splitlines())
    most = sum(sizes.values()) / 6
    assert {name: size for name, size in sizes.items() if size > most} == {}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_no_file_has_more_than_400_lines(file: Path) -> None:
    assert len((PACKAGE / file).read_text().splitlines()) <= 400


def layer(file: Path) -> str:
    """A folder, or a file beside them."""
    return file.parts[0].removesuffix(".py")


def imported(file: Path) -> Iterator[str]:
    """The folders that a file imports, also inside functions and for types only."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "commitlake":
            parts = (node.module or "").split(".")[1:]
            yield from [parts[0]] if parts else [name.name for name in node.names if name.name in ORDER]
