"""The demo's output while it runs: lines that stay, and on a terminal one that is refreshed."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

_EVERY_S = 5  # without a terminal the state is a line that stays, written at most so often


class DemoProgress:
    """Lines with the seconds since the start; threads may write them too. Without a terminal, `columns` is 0."""

    def __init__(self, columns: int = 0, out: TextIO = sys.stdout) -> None:
        self._console = Console(file=out, force_terminal=columns > 0, width=columns or None)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begin = time.monotonic()
        self._shown_at = float("-inf")

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    def write(self, text: str) -> None:
        """Write a line that stays."""
        self._console.print(Text(self._line(text)), soft_wrap=True)

    def show(self, text: str) -> None:
        """Show the present state: on a terminal in place of the one before, elsewhere as a line every few seconds."""
        if self._console.is_terminal:
            self._live.start()
            self._live.update(Text(self._line(text), no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self.seconds - self._shown_at >= _EVERY_S:
            self._shown_at = self.seconds
            self.write(text)

    def end(self) -> None:
        """Remove the refreshed line."""
        self._live.stop()

    def _line(self, text: str) -> str:
        return f"{self.seconds:3.0f}s {text}"
