"""The table that holds what the instances of a group agree on: one row for each group and topic."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from commitlake.consumer import receipts
from commitlake.consumer.shares import State
from commitlake.errors import ConsumerError
from commitlake.reading.table import Options

SCHEMA = pa.schema([("consumer_group", pa.string()), ("topic", pa.string()), ("state", pa.string())])
_TRIES = 60
_COMPACT_EVERY = 500


class Group:
    """One group's state for one topic, changed by compare and swap.

    Each change is a commit that replaces the row and fails when any other commit came between: deltalake makes a
    version of the log only where there is none (a hard link on a local disk, a conditional put on object stores).

    Args:
        place: of the table.
        group: the group of consumers.
        topic: the topic.
        options: deltalake's `storage_options`.
    """

    def __init__(self, place: str, group: str, topic: str, options: Options = None) -> None:
        receipts.create(place, SCHEMA, ["consumer_group", "topic"], options, {})
        self._table = DeltaTable(place, storage_options=dict(options or {}) or None)
        self._names = {"consumer_group": group, "topic": topic}
        self._changes = 0

    def read(self) -> State | None:
        """The state, None when the group never read this topic."""
        self._table.update_incremental()
        found = self._table.to_pyarrow_table(filters=[(name, "=", value) for name, value in self._names.items()])
        texts = found["state"].to_pylist()
        return json.loads(texts[0]) if texts else None

    def change(self, to: Callable[[State | None], State]) -> State:
        """Replace the state by what `to` makes of it, which may be asked more than once; return the new one.

        Raises:
            ConsumerError: others commit all the time.
        """
        for _ in range(_TRIES):
            state = to(self.read())
            try:
                self._replace(state)
            except CommitFailedError:
                time.sleep(random.uniform(0.01, 0.2))
                continue
            self._changes += 1
            if self._changes % _COMPACT_EVERY == 0:
                receipts.compact(self._table)
            return state
        msg = f"the state of group {self._names} was changed by others {_TRIES} times in a row; use fewer instances"
        raise ConsumerError(msg)

    def _replace(self, state: State) -> None:
        row = pa.table({**{name: [value] for name, value in self._names.items()}, "state": [json.dumps(state)]}, SCHEMA)
        predicate = " AND ".join(f"{name} = '{_quoted(value)}'" for name, value in self._names.items())
        once = CommitProperties(max_commit_retries=0)
        write_deltalake(self._table, row, mode="overwrite", predicate=predicate, commit_properties=once)


def _quoted(text: str) -> str:
    return text.replace("'", "''")
