"""What the demo says while it runs: lines that stay, and on a terminal one that is refreshed."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

_CLEAR = "\r\x1b[K"
_EVERY_S = 5  # without a terminal the state is a line like others, and rare


class Progress:
    """Lines with the seconds since the start.

    Args:
        columns: width of the terminal; 0 when there is none.
        out: where to write.
    """

    def __init__(self, columns: int = 0, out: TextIO = sys.stdout) -> None:
        self._columns, self._out = columns, out
        self._lock = threading.Lock()  # a thread says something now and then
        self._begin = time.monotonic()
        self._shown_at = float("-inf")

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._write(f"{_CLEAR if self._columns else ''}{self._line(text)}\n")

    def show(self, text: str) -> None:
        """Show the state of things: in place of the one before on a terminal, every few seconds elsewhere."""
        if self._columns:
            self._write(f"{_CLEAR}{self._line(text)[: self._columns - 1]}")
        elif self.seconds - self._shown_at >= _EVERY_S:
            self._shown_at = self.seconds
            self._write(f"{self._line(text)}\n")

    def end(self) -> None:
        """Remove the refreshed line."""
        if self._columns:
            self._write(_CLEAR)

    def _line(self, text: str) -> str:
        return f"{self.seconds:3.0f}s {text}"

    def _write(self, text: str) -> None:
        with self._lock:
            self._out.write(text)
            self._out.flush()
