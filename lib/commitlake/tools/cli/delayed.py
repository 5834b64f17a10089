"""The work of the commands about delayed messages; each returns its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from commitlake.config import Config
from commitlake.config.terminal import counted
from commitlake.kafka.admin_client import many_records
from commitlake.protocol import wire
from commitlake.protocol.kafka_topics import OP
from commitlake.reading.questions.delayed import recall_of, waiting
from commitlake.reading.questions.tables import opened
from commitlake.tools.cli.options import with_address
from commitlake.tools.cli.questions import FOUND, NOTHING, show

_EXAMPLES = 10


def send_recalls(settings: Config, rows: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Recall the messages of rows of `waiting`; yields their number once all recalls are sent."""
    with many_records(settings.kafka) as send:
        for row in rows:
            record = wire.encode_recall(recall_of(row))
            send(settings.kafka.topic(OP), key=record.key, value=record.value, partition=row["queue"])
    yield len(rows)


def recall(settings: Config, topic: str, keys: str, *, dry_run: bool, ask: bool) -> int:
    """Show the delayed messages with a key, then recall them."""
    if not dry_run:
        settings = with_address(settings)
    with opened(settings.warehouse) as tables:
        found = waiting(tables, topic, keys)
    show(found, _EXAMPLES, as_json=False)
    rows = found.to_pylist()
    if not rows or dry_run:
        return FOUND if rows else NOTHING
    if ask and not typer.confirm(f"Recall {counted(len(rows), 'message')}?"):
        return 1
    (sent,) = send_recalls(settings, rows)
    print(f"sent {counted(sent, 'recall')}; one that comes too late is in `commitlake rejected` as RECALL_TOO_LATE")
    return FOUND
