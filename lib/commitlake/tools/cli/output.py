"""Rows on the terminal, or in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from commitlake.config.terminal import printable
from commitlake.spark import process


def show(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as a table that fits the terminal; elsewhere as plain lines, columns as wide as they need.

    Times are UTC.
    """
    texts = [["" if value is None else printable(str(text(value))) for value in row] for row in rows]
    width = process.terminal_columns()
    if width:
        _show_on_terminal(columns, texts, width)
    else:
        _show_plain([list(columns), *texts])


def text(value: object) -> object:
    """A time as people read it, UTC; other values as they are."""
    return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if isinstance(value, datetime) else value


def _show_on_terminal(columns: Sequence[str], rows: list[list[str]], width: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(Text, row))  # a plain string would be read as markup
    # The driver writes to a pipe, so rich can't see the terminal at its end.
    Console(force_terminal=True, width=width).print(table)


def _show_plain(lines: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
