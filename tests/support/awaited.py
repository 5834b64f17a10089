"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

_LIMIT_S = 60


def awaited(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test on a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), _LIMIT_S))

    return run
