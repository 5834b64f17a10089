"""A working directory with modules that are not ours."""

from __future__ import annotations

from pathlib import Path

FOREIGN = ("commitlake", "kafka", "yaml", "numpy", "queue", "typer")


def foreign_modules(place: Path) -> Path:
    """A working directory whose modules have names of others; no process of CommitLake runs one of them."""
    here = place / "here"
    here.mkdir(exist_ok=True)
    for name in FOREIGN:
        (here / f"{name}.py").write_text("raise SystemExit(f'the file {__file__} of the working directory was run')")
    return here
