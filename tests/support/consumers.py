"""Consumers of a topic table on a local disk, in tests without a coordinator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import commitlake


def consumer(warehouse: Path, topic: Any = "orders", **arguments: Any) -> Any:
    given = {"group": "points", "poll": "50ms", "lease": "3s", **arguments}
    return commitlake.consume({"warehouse": str(warehouse)}, topic, **given)


def rest(warehouse: Path, most: int = 1_000, **arguments: Any) -> list[str]:
    """What a group has not done, and does now."""
    with consumer(warehouse, follow=False, **arguments) as messages:
        return [each.message_id for each in islice(messages, most) if each.done() is None]


def put_off(warehouse: Path, *names: str, after: str = "1h", most: int = 16) -> None:
    """Does what a group has not done, but for these messages: they come again, or are dead letters with `most=1`."""
    with consumer(warehouse, follow=False) as messages:
        for each in messages:
            each.retry(after, most) if each.message_id in names else each.done()


@contextmanager
def running(messages: Any, handle: Any) -> Iterator[None]:
    """A consumer in a thread of its own."""

    def read() -> None:
        with messages:
            for each in messages:
                handle(each)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        messages.stop()
        thread.join(30)
        assert not thread.is_alive()
