"""Overview of the groups of consumers: topics, members and lag; and an administrator's actions on groups."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from commitlake.clients.consumer import assignment
from commitlake.clients.consumer.arguments import start_ms
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.group import (
    FOLDER,
    Beats,
    Group,
    kept_receipts,
    kept_state,
    log_name,
    refuse_other_table,
)
from commitlake.clients.consumer.receipts import SCHEMA
from commitlake.clients.consumer.rows import keys_of
from commitlake.clients.consumer.tables import TRANSIENT
from commitlake.clients.consumer.topic import Topic
from commitlake.config import Config
from commitlake.errors import ConsumerError, NoTableError, WarehouseError
from commitlake.protocol.clock import now_ms
from commitlake.reading.catalog import location
from commitlake.reading.table import Snapshot, folders

log = logging.getLogger(__name__)

COLUMNS = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("members", pa.int64()),
        ("queues", pa.int64()),
        ("behind", pa.int64()),
        ("oldest_visible_at", pa.timestamp("us", "UTC")),
        ("waiting", pa.int64()),
        ("dead", pa.int64()),
    ]
)
UNREADABLE = (WarehouseError, *TRANSIENT)
_LOOK_S = 0.5
_EXACT_ROWS = 1_000_000


def groups(conf: Config) -> pa.Table:
    """All groups that ever read a topic with `consume`.

    Returns:
        Columns consumer_group, topic, members (also killed ones that no other member has missed yet), queues, behind
        (messages that the group has not passed, wanted or not; null if the topic can't be read now), oldest_visible_at
        (of these), waiting (messages that wait for their next attempt), dead (dead letters).
    """
    rows = [_row(conf, *names) for names in _names(conf)]
    return pa.Table.from_pylist(rows, COLUMNS).sort_by([("consumer_group", "ascending"), ("topic", "ascending")])


class Lag(NamedTuple):
    """How far a group is behind in a topic.

    Attributes:
        group: the group of consumers.
        topic: the topic that it reads.
        members: instances with a sign of life within two leases, by this machine's clock and the store's.
        behind: number of messages that it has not passed.
        oldest: when the oldest of them became visible; None without any.
    """

    group: str
    topic: str
    members: int
    behind: int
    oldest: datetime | None

    def late_s(self, now_s: float) -> float:
        """Age of the oldest message behind, in seconds; 0 without any. `now_s` is in s since epoch."""
        return 0 if self.oldest is None else now_s - self.oldest.timestamp()


def lags(conf: Config) -> Iterator[Lag]:
    """The lag of each group and topic.

    Up to a million rows are compared; beyond that whole files count. A group that can't be read now is left out.
    """
    for group, topic in sorted(_names(conf)):
        try:
            state = kept_state(conf.receipts_place, group, topic) or assignment.EMPTY
            found = _behind(conf, group, topic, state, _EXACT_ROWS)
            members = _alive(conf, group, topic, state)
        except UNREADABLE as error:
            log.info("not known how far the group %s is behind in %s: %s", group, topic, error)
        else:
            yield Lag(group, topic, members, *found)


def rewind(conf: Config, topic: str, group: str, to: str | int | datetime) -> None:
    """Move the cursors of a group to `first`, `newest` or a time; running instances follow within some seconds.

    A message that waits for its next attempt, and is not read again, is still redelivered; but not a message of a
    former table of the topic, which was deleted.

    Raises:
        ConsumerError: there is no such group, or `to` can't be used.
        WarehouseError: the topic can't be read.
    """
    begin_ms = start_ms(to)
    table = Topic(*location(conf, f"topics/{topic}"))
    ends = {} if begin_ms == 0 else table.ends(begin_ms)
    check_known(conf, topic, group)
    cursors = {queue: ends.get(queue, Cursor()) for queue in table.queues()}
    receipts = kept_receipts(conf.receipts_place, group, topic)
    texts = {queue: cursor.to_json() for queue, cursor in cursors.items()}
    closing, is_other = 0, False

    def rewound(before: assignment.State | None) -> assignment.State:
        nonlocal closing, is_other
        is_other = (before or assignment.EMPTY).get("table", table.id) != table.id
        # `closing` outranks all earlier receipts, also those of a concurrent rewind; later receipts outrank it.
        closing = max(receipts.last_round(), assignment.first_rounds(before)[-1]) + 1
        return assignment.rewound(before, texts, closing + 1, table.id)

    Group(conf.receipts_place, group, topic).change(rewound)
    # After the change: a kill in between lets waiting messages come twice; in the other order it would lose them.
    waiting = [row for row in (*receipts.waiting(), *receipts.dead()) if row["round"] < closing]
    gone = [row for row in waiting if is_other or _is_behind(row, cursors.get(row["queue_id"]))]
    receipts.close(gone, closing, now_ms())


def delete(conf: Config, topic: str, group: str) -> None:
    """Delete a group's cursors and receipts. A consumer of that name then begins as a new group.

    Raises:
        ConsumerError: there is no such group, or instances of it are alive.
    """
    check_known(conf, topic, group)
    kept = Group(conf.receipts_place, group, topic)
    members = (kept.read() or assignment.EMPTY)["members"]
    if members and _is_alive(kept, members):
        msg = f"group {group!r} of the topic {topic} has instances that are alive; stop them first"
        raise ConsumerError(msg)
    kept_receipts(conf.receipts_place, group, topic).delete_all()
    kept.forget()


def check_known(conf: Config, topic: str, group: str) -> None:
    """Refuse a group that never read the topic.

    Raises:
        ConsumerError: there is no such group.
    """
    if kept_state(conf.receipts_place, group, topic) is None:
        msg = f"group {group!r} never read the topic {topic} with `consume`; `commitlake groups` shows those that did"
        raise ConsumerError(msg)


def _is_behind(receipt: dict[str, Any], cursor: Cursor | None) -> bool:
    """Whether the message of a receipt comes after the cursor; False without one: its queue has no rows any more."""
    return cursor is not None and bool(cursor.is_before(keys_of(pa.Table.from_pylist([receipt], SCHEMA)))[0])


def _is_alive(group: Group, members: Mapping[str, float]) -> bool:
    """Wait for a sign of life of any member, for at most the longest lease; False without one."""
    before, until = group.beats.seen(), time.monotonic() + max(members.values())
    while time.monotonic() < until:
        now = group.beats.seen()
        if any(now.get(name) != before.get(name) for name in members if name in now):
            return True
        time.sleep(_LOOK_S)
    return False


def _alive(conf: Config, group: str, topic: str, state: assignment.State) -> int:
    """How many members live; a killed one stays a member until another member finds it gone."""
    beats = Beats(f"{conf.receipts_place}/{FOLDER}/{log_name(group, topic)}").seen()
    now = time.time_ns()
    return sum(name in beats and now - beats[name][0] < 2e9 * lease for name, lease in state["members"].items())


def _names(conf: Config) -> Iterator[tuple[str, str]]:
    """Group and topic of each table of a group."""
    for folder in folders(f"{conf.receipts_place}/{FOLDER}"):
        try:
            rows = Snapshot(f"{conf.receipts_place}/{FOLDER}/{folder}").dataset().to_table()
        except UNREADABLE:
            continue  # the table is being created, or broken
        yield from {(row["consumer_group"], row["topic"]) for row in rows.to_pylist() if row["state"] != "null"}


def _row(conf: Config, group: str, topic: str) -> dict[str, Any]:
    state = kept_state(conf.receipts_place, group, topic) or assignment.EMPTY
    receipts = kept_receipts(conf.receipts_place, group, topic)
    behind: tuple[int | None, datetime | None] = None, None
    try:
        behind = _behind(conf, group, topic, state)
    except UNREADABLE as error:
        log.warning("not known how far the group %s is behind in %s: %s", group, topic, error)
    return {
        **{"consumer_group": group, "topic": topic, "members": len(state["members"]), "queues": len(state["queues"])},
        **dict(zip(("behind", "oldest_visible_at"), behind, strict=True)),
        **{"waiting": len(receipts.waiting()), "dead": len(receipts.dead())},
    }


def _behind(
    conf: Config, group: str, topic: str, state: assignment.State, most_rows: int | None = None
) -> tuple[int, datetime | None]:
    """How many messages a group has not passed, and when the oldest of them became visible."""
    try:
        table = Topic(*location(conf, f"topics/{topic}"))
    except NoTableError:
        return 0, None  # the topic was deleted
    refuse_other_table(state, table.id, group, topic)
    return table.behind(assignment.cursors(state), most_rows)
