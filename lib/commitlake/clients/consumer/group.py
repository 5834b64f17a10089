"""The state that the instances of a group share about a topic: a Delta table for each group and topic.

The state has parts. Part 0 concerns all: the members, the free queues, and the numbers of all queues. Each other part
has the queues, with cursors, of the members whose names share a hash. A change replaces the parts that it touches.
deltalake refuses the change only if another commit has touched one of these parts before. So a member that moves its
cursors races with few others. A member whose queue was taken is fenced, since taking a queue replaces the queue's part.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyarrow import fs

from commitlake.clients.consumer import assignment, tables
from commitlake.clients.consumer.assignment import State
from commitlake.clients.consumer.receipts import Receipts
from commitlake.config.object_store import storage_options
from commitlake.errors import ConsumerError, WarehouseError
from commitlake.reading.table import Options, filesystem

SCHEMA = pa.schema(
    [("consumer_group", pa.string()), ("topic", pa.string()), ("part", pa.int32()), ("state", pa.string())]
)
FOLDER = "group_logs"
_PARTS = 64
"""Parts besides part 0, at most. A part for each name would leave an empty directory of each instance that ever ran."""
_SETTINGS = {"delta.logRetentionDuration": "interval 1 hour"}
_TRIES = 40
_REBASED = 100
"""Commits to other parts that may precede a commit."""
_SHORTEST_S, _LONGEST_S = 0.02, 5.0
"""The random pause after another change of the same part came first: its upper bound doubles from 0.02 to 5 s."""
_COMPACT_EVERY = 500


Texts = dict[int, str]
"""The state as JSON, by part."""
_BEATS = "_beats"
"""The folder of signs of life below a table; a vacuum skips names that begin with `_`."""
Beat = tuple[int, int]
"""The time when the file was written, in ns by the store's clock, and its size; compared only with earlier ones."""


class Beats:
    """Signs of life of a group's instances: each rewrites a small file of its own.

    Rows of a table would not do: idle instances would each commit, and race for the next version of the log. With 50
    instances, each with a commit each 3 s, a sync took 12 s.
    """

    def __init__(self, place: str, options: Options = None) -> None:
        self._files, self._count = filesystem(place, options), 0

    def show(self, name: str) -> None:
        """Show that an instance lives.

        Raises:
            OSError: the file can't be written.
        """
        self._count += 1
        if isinstance(self._files, fs.PyFileSystem):  # its streams pass a Buffer, which this deltalake refuses
            stream: Any = self._files.handler._handler.open_output_stream(f"{_BEATS}/{name}", None)
        else:
            self._files.create_dir(_BEATS, recursive=False)  # a new parent would hide that a store is not mounted
            stream = self._files.open_output_stream(f"{_BEATS}/{name}")
        with closing(stream):  # a new size each time: object stores give times in whole seconds
            stream.write(b"." * (self._count % 8 + 1))

    def seen(self) -> dict[str, Beat]:
        """The beats, by instance.

        Raises:
            OSError: the store can't be read.
        """
        found = self._files.get_file_info(fs.FileSelector(_BEATS, allow_not_found=True))
        return {info.base_name: (info.mtime_ns, info.size) for info in found}

    def end(self, name: str) -> None:
        """Remove the file of an instance."""
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{_BEATS}/{name}")


class Group:
    """One group's state for one topic, changed by compare and swap.

    deltalake never replaces a version of the log: it writes one by a hard link on a local disk, and by a conditional
    put on object stores.
    """

    def __init__(self, receipts_at: str, group: str, topic: str, options: Options = None) -> None:
        self._place = f"{receipts_at}/{FOLDER}/{log_name(group, topic)}"
        tables.create(self._place, SCHEMA, ["part"], options, _SETTINGS)
        self._table = DeltaTable(self._place, storage_options=storage_options(options))
        self._files = filesystem(self._place, options)
        self.beats = Beats(self._place, options)
        self._names = {"consumer_group": group, "topic": topic}
        self._before = f"{receipts_at}/groups", options
        self._read: tuple[int, Texts] | None = None
        self._changes = 0

    def read(self) -> State | None:
        """The state; None when the group never read this topic."""
        return _joined(self._texts()[1])

    def refuse_other_table(self, state: State | None, table_id: str) -> None:
        """See the function of this name."""
        refuse_other_table(state, table_id, self._names["consumer_group"], self._names["topic"])

    def change(self, to: Callable[[State | None], State]) -> State:
        """Replace the state by the result of `to`, which may be called more than once; return the new state.

        Unchanged parts are not written. When no part changes, there is no commit.

        Raises:
            ConsumerError: other instances committed first, `_TRIES` times in a row.
        """
        for tried in range(_TRIES):
            version, before = self._texts()
            state = to(_joined(before))
            after = _parted(state)
            if after == before:
                return state
            try:
                if self._table.version() == version:  # `to` may have read a later version
                    self._replace(before, after)
                    if self._table.version() == version + 1:  # no commit to another part came in between
                        self._read = version + 1, after
                    self._tidy()
                    return state
            except CommitFailedError:
                time.sleep(random.uniform(0, min(_LONGEST_S, _SHORTEST_S * 2**tried)))
        msg = f"the state of group {self._names} was changed by others {_TRIES} times in a row; use fewer instances"
        raise ConsumerError(msg)

    def forget(self) -> None:
        """Delete the state."""
        # Always a commit: at version 0 of the table the state of an earlier version of CommitLake would count.
        self._replace({**self._texts()[1], 0: ""}, {0: "null"})

    def _texts(self) -> tuple[int, Texts]:
        """The newest version, and its parts, which are read once for each version."""
        tables.check_there(self._place)
        self._table.update_incremental()
        version = self._table.version()
        if self._read is None or self._read[0] != version:
            rows = self._table.to_pyarrow_table(filesystem=self._files).to_pylist()
            earlier = _earlier(*self._before, self._names) if version == 0 else {}
            self._read = version, (_texts_of(rows) or earlier)
        return self._read

    def _replace(self, before: Texts, after: Texts) -> None:
        """Commit the parts that differ; or all parts, if the table is new or of an earlier version of CommitLake."""
        is_ours = "part" in self._table.metadata().partition_columns
        if not is_ours or self._table.version() == 0:
            before = {}
        changed = sorted(part for part in before.keys() | after.keys() if before.get(part) != after.get(part))
        written = [{**self._names, "part": part, "state": after[part]} for part in changed if part in after]
        how: dict[str, Any] = {"predicate": f"part IN ({', '.join(map(str, changed))})"}
        if not is_ours:  # from now on instances of that earlier version can't write to it
            how = {"schema_mode": "overwrite", "partition_by": ["part"]}
        tries = CommitProperties(max_commit_retries=_REBASED if is_ours else 0)
        rows = pa.Table.from_pylist(written, SCHEMA)
        write_deltalake(self._table, rows, mode="overwrite", commit_properties=tries, **how)

    def _tidy(self) -> None:
        self._changes += 1
        if self._changes % _COMPACT_EVERY == 0:
            tables.compact(self._table)


def _parted(state: State) -> Texts:
    """The parts of a state, as the table stores them."""
    queues: dict[int, dict[str, Any]] = {0: {}}
    for queue, share in state["queues"].items():
        owner = share["owner"]
        part = 0 if owner is None else 1 + zlib.crc32(owner.encode()) % _PARTS
        queues.setdefault(part, {})[queue] = share
    # Part 0 also lists all queues, so that two members that find a new queue can't both take it.
    common = {**state, "queues": queues.pop(0), "all": sorted(state["queues"])}
    parts = {0: common, **{part: {"members": {}, "queues": mine} for part, mine in queues.items()}}
    return {part: json.dumps(kept, sort_keys=True) for part, kept in parts.items()}


def _joined(texts: Texts) -> State | None:
    """The inverse of `_parted`; None without a state."""
    state: State | None = json.loads(texts.get(0, "null"))
    if state is not None:
        del state["all"]
        for part in texts.keys() - {0}:
            state["queues"] |= json.loads(texts[part])["queues"]
    return state


def _texts_of(rows: list[dict[str, Any]]) -> Texts:
    """The parts in a table. The single row of an earlier version is split, and its instances lose their queues."""
    if not rows or "part" in rows[0]:
        return {row["part"]: row["state"] for row in rows}
    kept = json.loads(rows[0]["state"])
    if kept is None:
        return {0: "null"}
    queues = {queue: {**share, "owner": None} for queue, share in kept["queues"].items()}
    return _parted({**kept, "members": {}, "queues": queues})


def refuse_other_table(state: State | None, table_id: str, group: str, topic: str) -> None:
    """Refuse a topic whose table is not the one of the group's cursors: rows before the cursors would be skipped.

    Raises:
        WarehouseError: the table was deleted and created again. After a rewind the group can read the new one.
    """
    if state and state.get("table", table_id) != table_id:
        msg = (
            f"the table of the topic {topic} was deleted and made again since the group {group!r} read it, and how far "
            f"the group came says nothing about its rows of now; stop its instances, run `commitlake groups --topic "
            f"{topic} --group {group} --rewind first`, or to `newest` or a time, and start them again"
        )
        raise WarehouseError(msg)


def kept_state(receipts_at: str, group: str, topic: str) -> State | None:
    """The state of a group, read without creating a table; None when the group never read this topic."""
    if not DeltaTable.is_deltatable(f"{receipts_at}/{FOLDER}/{log_name(group, topic)}", storage_options(None)):
        return _joined(_earlier(f"{receipts_at}/groups", None, {"consumer_group": group, "topic": topic}))
    return Group(receipts_at, group, topic).read()


def kept_receipts(receipts_at: str, group: str, topic: str) -> Receipts:
    """The receipts of a group, whether or not an instance of it runs."""
    first_rounds = assignment.first_rounds(kept_state(receipts_at, group, topic))
    return Receipts(f"{receipts_at}/receipts", group, topic, first_rounds=first_rounds)


def _earlier(place: str, options: Options, names: Mapping[str, str]) -> Texts:
    """The state that the first versions of CommitLake wrote, as one row in a table of all groups; empty without one."""
    kept = storage_options(options)
    if not DeltaTable.is_deltatable(place, kept):
        return {}
    filters = [(name, "=", value) for name, value in names.items()]
    table = DeltaTable(place, storage_options=kept)
    rows = table.to_pyarrow_table(columns=["state"], filters=filters, filesystem=filesystem(place, options))
    return _texts_of(rows.to_pylist())


def log_name(group: str, topic: str) -> str:
    """Name of the directory of a group's table. A group may have any characters, a file name at most 255 bytes."""
    digest = hashlib.sha256(f"{group}\0{topic}".encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9_-]', '-', f'{group[:60]}-{topic[:60]}')}-{digest}"
