"""What the instances of a group agree on about a topic: a Delta table for each group and topic.

Part 0 has what concerns all: the members, the queues that are free, and which queues there are. Each other part has the
leases of some members, those whose names share a hash: their queues and how far they came. A change replaces the parts
that it touches. deltalake refuses it where another commit came before that touched one of them, and only there. So a
member that moves its cursors races with nobody, and one whose queue was taken is fenced: taking a queue replaces the
part it was in.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

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

SCHEMA = pa.schema(
    [("consumer_group", pa.string()), ("topic", pa.string()), ("part", pa.int32()), ("state", pa.string())]
)
FOLDER = "group_logs"
_PARTS = 64
"""Of leases, at most. One for each name would leave an empty directory of each instance that ever ran."""
_SETTINGS = {"delta.logRetentionDuration": "interval 1 hour"}
_TRIES = 40
_REBASED = 100
"""Commits of other parts that may come before one."""
_SHORTEST_S, _LONGEST_S = 0.02, 5.0
"""Of the pause after a change of the same part came first: up to twice as long each time, by chance."""
_COMPACT_EVERY = 500


Texts = dict[int, str]
"""The state's parts, as JSON."""


class Group:
    """One group's state for one topic, changed by compare and swap.

    deltalake makes a version of the log only where there is none: a hard link on a local disk, a conditional put on
    object stores.

    Args:
        receipts_at: where the tables of consumers are.
        group: the group of consumers.
        topic: the topic.
        options: deltalake's `storage_options`.
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
        """The state, None when the group never read this topic."""
        return _joined(self._texts()[1])

    def refuse_other_table(self, state: State | None, table_id: str) -> None:
        """See the function."""
        refuse_other_table(state, table_id, self._names["consumer_group"], self._names["topic"])

    def change(self, to: Callable[[State | None], State]) -> State:
        """Replace the state by what `to` makes of it, which may be asked more than once; return the new one.

        Parts that stay as they are are not written; where all do there is no commit.

        Raises:
            ConsumerError: others commit all the time.
        """
        for tried in range(_TRIES):
            version, before = self._texts()
            state = to(_joined(before))
            after = _parted(state)
            if after == before:
                return state
            try:
                if self._table.version() == version:  # `to` may have read a later one
                    self._replace(before, after)
                    if self._table.version() == version + 1:  # and no other one came before it
                        self._read = version + 1, after
                    self._tidy()
                    return state
            except CommitFailedError:
                time.sleep(random.uniform(0, min(_LONGEST_S, _SHORTEST_S * 2**tried)))
        msg = f"the state of group {self._names} was changed by others {_TRIES} times in a row; use fewer instances"
        raise ConsumerError(msg)

    def forget(self) -> None:
        """Have no state any more."""
        self._replace({**self._texts()[1], 0: ""}, {0: "null"})  # version 0 stands for what an earlier version kept

    def _texts(self) -> tuple[int, Texts]:
        """The newest version, which is read once, and what it keeps."""
        tables.check_there(self._place)
        self._table.update_incremental()
        version = self._table.version()
        if self._read is None or self._read[0] != version:
            rows = self._table.to_pyarrow_table(filesystem=self._files).to_pylist()
            earlier = _earlier(*self._before, self._names) if version == 0 else {}
            self._read = version, (_texts_of(rows) or earlier)
        return self._read

    def _replace(self, before: Texts, after: Texts) -> None:
        """Commit the parts that differ; all, where the table is of an earlier version, or new."""
        is_ours = "part" in self._table.metadata().partition_columns
        if not is_ours or self._table.version() == 0:
            before = {}
        changed = sorted(part for part in before.keys() | after.keys() if before.get(part) != after.get(part))
        written = [{**self._names, "part": part, "state": after[part]} for part in changed if part in after]
        how: dict[str, Any] = {"predicate": f"part IN ({', '.join(map(str, changed))})"}
        if not is_ours:  # from now on instances of that version can't write to it
            how = {"schema_mode": "overwrite", "partition_by": ["part"]}
        tries = CommitProperties(max_commit_retries=_REBASED if is_ours else 0)
        rows = pa.Table.from_pylist(written, SCHEMA)
        write_deltalake(self._table, rows, mode="overwrite", commit_properties=tries, **how)

    def _tidy(self) -> None:
        self._changes += 1
        if self._changes % _COMPACT_EVERY == 0:
            tables.compact(self._table)


def _parted(state: State) -> Texts:
    """The parts of a state, as they are kept."""
    queues: dict[int, dict[str, Any]] = {0: {}}
    for queue, share in state["queues"].items():
        owner = share["owner"]
        part = 0 if owner is None else 1 + zlib.crc32(owner.encode()) % _PARTS
        queues.setdefault(part, {})[queue] = share
    # Which queues there are is in part 0 too: two members that find a new one shall not both take it.
    common = {**state, "queues": queues.pop(0), "all": sorted(state["queues"])}
    parts = {0: common, **{part: {"members": {}, "queues": mine} for part, mine in queues.items()}}
    return {part: json.dumps(kept, sort_keys=True) for part, kept in parts.items()}


def _joined(texts: Texts) -> State | None:
    """What `_parted` was given; None where nothing is kept."""
    state: State | None = json.loads(texts.get(0, "null"))
    if state is not None:
        del state["all"]
        for part in texts.keys() - {0}:
            state["queues"] |= json.loads(texts[part])["queues"]
    return state


def _texts_of(rows: list[dict[str, Any]]) -> Texts:
    """The parts in a table; the one row of an earlier version is taken apart, and its instances have nothing more."""
    if not rows or "part" in rows[0]:
        return {row["part"]: row["state"] for row in rows}
    kept = json.loads(rows[0]["state"])
    if kept is None:
        return {0: "null"}
    queues = {queue: {**share, "owner": None} for queue, share in kept["queues"].items()}
    return _parted({**kept, "members": {}, "queues": queues})


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
        return _joined(_earlier(f"{receipts_at}/groups", options, {"consumer_group": group, "topic": topic}))
    return Group(receipts_at, group, topic, options).read()


def kept_receipts(receipts_at: str, group: str, topic: str, options: Options = None) -> Receipts:
    """The receipts of a group, whether or not an instance of it runs."""
    first_rounds = assignment.first_rounds(kept_state(receipts_at, group, topic, options))
    return Receipts(f"{receipts_at}/receipts", group, topic, options, first_rounds)


def _earlier(place: str, options: Options, names: Mapping[str, str]) -> Texts:
    """How far a group came with the first versions, when all groups were rows of one table."""
    kept = storage_options(options)
    if not DeltaTable.is_deltatable(place, kept):
        return {}
    filters = [(name, "=", value) for name, value in names.items()]
    table = DeltaTable(place, storage_options=kept)
    rows = table.to_pyarrow_table(columns=["state"], filters=filters, filesystem=filesystem(place, options))
    return _texts_of(rows.to_pylist())


def log_name(group: str, topic: str) -> str:
    """Name of the directory of a group's table: a group has any characters, a file's name no more than 255 bytes."""
    digest = hashlib.sha256(f"{group}\0{topic}".encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9_-]', '-', f'{group[:60]}-{topic[:60]}')}-{digest}"
