"""How tests wait: until what they assert holds, or a coroutine is done, and for as long as a busy machine may need."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Found = TypeVar("Found")

WAIT_S = 120
"""A first batch takes 8 s on two idle cores, and several times as long on busy ones."""
_INTERVAL_S = 0.2


def wait_for(find: Callable[[], Found | None], seconds: float = WAIT_S, why: Callable[[], object] = str) -> Found:
    """Polls until `find` returns something true, and returns that; the dearer a look, the rarer.

    Args:
        find: looks once.
        seconds: how long to wait at most.
        why: what to show when that was not enough.

    Raises:
        AssertionError: nothing was found in time.
    """
    deadline = time.monotonic() + seconds
    begun = time.process_time()
    while not (found := find()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {why()}"
        time.sleep(min(1.0, max(_INTERVAL_S, 30 * (time.process_time() - begun))))  # rows of tables take 30 ms
        begun = time.process_time()
    return found


def patience() -> float:
    """How much longer than on a quiet machine things may take: runnable processes for each core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until_equal(find: Callable[[], Found], expected: Found, seconds: float = WAIT_S) -> None:
    """Polls until `find` returns what is expected, and shows both when it does not in time."""
    wait_for(lambda: find() == expected, seconds, lambda: f"{find()} instead of {expected}")


def awaited(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test that is a coroutine on a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 60))

    return run
