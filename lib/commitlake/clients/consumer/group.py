"""What the instances of a group agree on about a topic: a Delta table of one row for each group and topic."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Mapping

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from commitlake.clients.consumer import assignment, tables
from commitlake.clients.consumer.assignment import State
from commitlake.clients.consumer.beats import Beats
from commitlake.clients.consumer.receipts import Receipts
from commitlake.config.object_store import storage_options
from commitlake.errors import ConsumerError, WarehouseError
from commitlake.reading.table import Options, filesystem

SCHEMA = pa.schema([("consumer_group", pa.string()), ("topic", pa.string()), ("state", pa.string())])
FOLDER = "group_logs"
_SETTINGS = {"delta.logRetentionDuration": "interval 1 hour"}
_TRIES = 40
_SHORTEST_S, _LONGEST_S = 0.02, 5.0
"""Of the pause after a change of somebody else's came first: up to twice as long each time, by chance."""
_COMPACT_EVERY = 500


class Group:
    """One group's state for one topic, changed by compare and swap.

    Each change is a commit that replaces the row and fails when any other commit came between: deltalake makes a
    version of the log only where there is none (a hard link on a local disk, a conditional put on object stores).

    Args:
        receipts_at: where the tables of consumers are.
        group: the group of consumers.
        topic: the topic.
        options: deltalake's `storage_options`.
    """

    def __init__(self, receipts_at: str, group: str, topic: str, options: Options = None) -> None:
        self._place = f"{receipts_at}/{FOLDER}/{log_name(group, topic)}"
        tables.create(self._place, SCHEMA, [], options, _SETTINGS)
        self._table = DeltaTable(self._place, storage_options=storage_options(options))
        self._files = filesystem(self._place, options)
        self.beats = Beats(self._place, options)
        self._names = {"consumer_group": group, "topic": topic}
        self._before = f"{receipts_at}/groups", options
        self._read: tuple[int, str | None] | None = None
        self._changes = 0

    def read(self) -> State | None:
        """The state, None when the group never read this topic."""
        text = self._text()
        return json.loads(text) if text else None

    def refuse_other_table(self, state: State | None, table_id: str) -> None:
        """See the function."""
        refuse_other_table(state, table_id, self._names["consumer_group"], self._names["topic"])

    def change(self, to: Callable[[State | None], State]) -> State:
        """Replace the state by what `to` makes of it, which may be asked more than once; return the new one.

        A state that stays as it is makes no commit.

        Raises:
            ConsumerError: others commit all the time.
        """
        for tried in range(_TRIES):
            before = self._text()
            state = to(json.loads(before) if before else None)
            text = json.dumps(state, sort_keys=True)
            if text == before:
                return state
            try:
                self._replace(text)
            except CommitFailedError:
                time.sleep(random.uniform(0, min(_LONGEST_S, _SHORTEST_S * 2**tried)))
                continue
            self._tidy()
            return state
        msg = f"the state of group {self._names} was changed by others {_TRIES} times in a row; use fewer instances"
        raise ConsumerError(msg)

    def forget(self) -> None:
        """Have no state any more."""
        self._table.update_incremental()
        self._replace("null")  # a commit in any case: version 0 stands for what an earlier version kept

    def _text(self) -> str | None:
        """The state as it is kept: that of the newest version, which is read once."""
        tables.check_there(self._place)
        self._table.update_incremental()
        version = self._table.version()
        if self._read is None or self._read[0] != version:
            texts = self._table.to_pyarrow_table(columns=["state"], filesystem=self._files)["state"].to_pylist()
            earlier = _earlier(*self._before, self._names) if version == 0 else None
            self._read = version, (texts[0] if texts else earlier)
        return self._read[1]

    def _replace(self, text: str) -> None:
        row = pa.table({**{name: [value] for name, value in self._names.items()}, "state": [text]}, SCHEMA)
        write_deltalake(self._table, row, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))

    def _tidy(self) -> None:
        self._changes += 1
        if self._changes % _COMPACT_EVERY == 0:
            tables.compact(self._table)


def refuse_other_table(state: State | None, table_id: str, group: str, topic: str) -> None:
    """Refuse a topic whose table is not the one that the group's cursors are about: rows before them would never come.

    Raises:
        WarehouseError: it was deleted and made again. A rewind lets the group begin in the one of now.
    """
    if state and state.get("table", table_id) != table_id:
        msg = (
            f"the table of the topic {topic} was deleted and made again since the group {group!r} read it, and how far "
            f"the group came says nothing about its rows of now; stop its instances, run `commitlake groups --topic "
            f"{topic} --group {group} --rewind first`, or to `newest` or a time, and start them again"
        )
        raise WarehouseError(msg)


def kept_state(receipts_at: str, group: str, topic: str, options: Options = None) -> State | None:
    """The state of a group as a question sees it, which makes no table; None when the group never read this topic."""
    if not DeltaTable.is_deltatable(f"{receipts_at}/{FOLDER}/{log_name(group, topic)}", storage_options(options)):
        text = _earlier(f"{receipts_at}/groups", options, {"consumer_group": group, "topic": topic})
        return json.loads(text) if text else None
    return Group(receipts_at, group, topic, options).read()


def kept_receipts(receipts_at: str, group: str, topic: str, options: Options = None) -> Receipts:
    """The receipts of a group, whether or not an instance of it runs."""
    first_rounds = assignment.first_rounds(kept_state(receipts_at, group, topic, options))
    return Receipts(f"{receipts_at}/receipts", group, topic, options, first_rounds)


def _earlier(place: str, options: Options, names: Mapping[str, str]) -> str | None:
    """How far a group came with earlier versions, when all groups were rows of one table."""
    kept = storage_options(options)
    if not DeltaTable.is_deltatable(place, kept):
        return None
    filters = [(name, "=", value) for name, value in names.items()]
    table = DeltaTable(place, storage_options=kept)
    texts = table.to_pyarrow_table(filters=filters, filesystem=filesystem(place, options))["state"].to_pylist()
    if not texts:
        return None
    queues = {queue: {**share, "owner": None} for queue, share in json.loads(texts[0])["queues"].items()}
    return json.dumps({"members": {}, "queues": queues})


def log_name(group: str, topic: str) -> str:
    """Name of the directory of a group's table: a group has any characters, a file's name no more than 255 bytes."""
    digest = hashlib.sha256(f"{group}\0{topic}".encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9_-]', '-', f'{group[:60]}-{topic[:60]}')}-{digest}"
