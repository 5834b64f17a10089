"""Rows on the terminal, or in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from commitlake.config.terminal import printable
from commitlake.spark import process

FOUND, NOTHING = 0, 3
"""Exit codes of commands that show or change rows."""
_FOLDED = 32
"""Longer texts are folded where room is short. Ids are not: people copy them."""
_ANSWERS = {"state", "reason", "topic"}
"""The columns that a list is read for."""
_PADDING = 3
"""Cells around the text of a column; the table has one more."""


def show(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as a table that fits the terminal; elsewhere as plain lines, columns as wide as they need.

    Times are UTC. Columns for which a terminal is too narrow are left out, and named.
    """
    texts = [["" if value is None else printable(str(text(value))) for value in row] for row in rows]
    width = process.terminal_columns()
    if width:
        _show_on_terminal(columns, texts, width)
    else:
        _show_plain([list(columns), *texts])


def text(value: object) -> object:
    """A time as text in ISO 8601, UTC, with ms; other values as they are."""
    return f"{value:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z" if isinstance(value, datetime) else value


def _show_on_terminal(columns: Sequence[str], rows: list[list[str]], width: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, shown = Table(box=SIMPLE_HEAD), _fitting(columns, rows, width)
    for name in shown:  # rich cuts a text that is too long and must not wrap
        table.add_column(name, no_wrap=_is_id(name) and len(shown) > 1, overflow="fold")
    for row in rows:
        # A plain string would be read as markup.
        table.add_row(*[Text(text) for name, text in zip(columns, row, strict=True) if name in shown])
    # The driver writes to a pipe, so rich can't see the terminal at its end.
    Console(force_terminal=True, width=width).print(table)
    if left_out := [name for name in columns if name not in shown]:
        print(f"the terminal is too narrow for: {', '.join(left_out)}")


def _fitting(columns: Sequence[str], rows: list[list[str]], width: int) -> list[str]:
    """The columns that fit: ids, then what became of each and where, then the others, the narrow ones first."""
    from rich.cells import cell_len

    lines = zip(columns, *rows, strict=True)
    wanted = {name: max(map(cell_len, (name, *texts))) for name, *texts in lines}
    needed = {name: wide if _is_id(name) else min(wide, _FOLDED) for name, wide in wanted.items()}
    shown, room = set[str](), width - 1
    for name in sorted(columns, key=lambda name: (not _is_id(name), name not in _ANSWERS, needed[name])):
        if not shown or needed[name] + _PADDING <= room:
            shown.add(name)
            room -= needed[name] + _PADDING
    return [name for name in columns if name in shown]


def _is_id(column: str) -> bool:
    return column.endswith("_id")


def _show_plain(lines: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
