"""Messages that a group has missed: rows that `topics.retention` deleted before the group had read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow.dataset as pads

from commitlake.clients.consumer.cursor import Cursor
from commitlake.errors import NoTableError
from commitlake.reading.table import Options, Snapshot

_COLUMNS = ("queue_id", "source_queue", "last", "visible_before")


class Missed(NamedTuple):
    """Rows of one queue that are gone, from behind the cursor up to `last`.

    Attributes:
        queue: the destination queue.
        kind: what the numbers are: batches, or the offsets of normal messages in one partition of Kafka.
        passed: the number that the group had come to.
        last: the highest one of a deleted row.
        visible_before: when every deleted row had become visible.
    """

    queue: int
    kind: str
    passed: int
    last: int
    visible_before: datetime

    def __str__(self) -> str:
        numbers = f"{self.kind} {self.passed} to {self.last}"
        return f"queue {self.queue}, {numbers}, visible before {self.visible_before:%Y-%m-%d %H:%M:%S} UTC"


def missed(place: str, topic: str, cursors: Mapping[int, Cursor], options: Options) -> Iterator[Missed]:
    """The rows of a topic that were deleted behind cursors; where a group has read nothing, it has missed nothing.

    Args:
        place: of the table `maintenance`; a copy of the topics alone has none.
        topic: the topic.
        cursors: by queue.
        options: deltalake's `storage_options`.
    """
    try:
        table = Snapshot.shared(place, options)
    except NoTableError:
        return
    if "visible_before" not in table.column_names():  # an older version wrote it
        return
    rows = table.dataset().to_table(list(_COLUMNS), filter=pads.field("topic") == topic)
    newest = rows.group_by(["queue_id", "source_queue"]).aggregate([("last", "max"), ("visible_before", "max")])
    for row in newest.to_pylist():
        cursor, source = cursors.get(row["queue_id"], Cursor()), row["source_queue"]
        passed = cursor.batch[0] if source is None else cursor.normal.get(source, (-1, -1))[0]
        if 0 <= passed < row["last_max"]:
            kind = "batches" if source is None else f"offsets of partition {source}"
            yield Missed(row["queue_id"], kind, passed, row["last_max"], row["visible_before_max"])
