"""The assignment of a group's queues to its instances, as pure functions of the stored state and this instance's view.

The state of a group and a topic has `members`, and `queues`, each with its owner and cursor. Besides, each member has a
beat, which changes while it lives. No clocks of two machines are compared: a member is gone when its beat stands still
by the clock of another member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from commitlake.clients.consumer.cursor import Cursor

State = dict[str, Any]
"""`{"members": {name: its lease, s}, "queues": {"<queue>": {"owner": name or None, "cursor": Cursor.to_json()}}}`

After a rewind also `rounds`, the rounds of the first attempts of each reading. Once an instance has joined also
`table`, the id of the topic's table: cursors are places in that table.
"""

EMPTY: State = {"members": {}, "queues": {}}


def rebalance(
    state: State,
    me: str,
    gone: Collection[str],
    queues: Collection[int],
    held: Collection[int],
    cursors: Mapping[int, object],
    lease_s: float = 15,
) -> State:
    """The state after a sync of this instance; equal to `state` when nothing changes.

    When there are as many members as queues, further instances stand by: they join when a member is gone, or a queue is
    new.

    Args:
        state: the stored state.
        me: name of this instance.
        gone: other members whose beat stands still.
        queues: all queues of the topic.
        held: queues with unfinished messages of this instance, which keeps the queues until these are finished.
        cursors: cursors of the queues that this instance reads, as JSON.
        lease_s: seconds without a sign of life after which others take its queues.
    """
    members = {name: lease for name, lease in state["members"].items() if name not in gone}
    if me not in members and len(members) >= max(1, len(state["queues"].keys() | set(map(str, queues)))):
        return state
    members[me] = lease_s
    known = {str(queue): {"owner": None, "cursor": None} for queue in sorted(queues)} | state["queues"]
    dues = due({"members": members, "queues": known})
    kept = {}
    for queue, share in known.items():
        owner, cursor = share["owner"], share["cursor"]
        is_due = dues[int(queue)] == me
        if owner == me:
            cursor = cursors.get(int(queue), cursor)
        if owner not in members or (owner == me and not is_due and int(queue) not in held):
            owner = None
        kept[queue] = {"owner": me if owner is None and is_due else owner, "cursor": cursor}
    return {**state, "members": members, "queues": kept}


def due(state: State) -> dict[int, str]:
    """The member that is to read each queue: members take turns, in the order of names and queues."""
    names = sorted(state["members"])
    return {queue: names[place % len(names)] for place, queue in enumerate(sorted(map(int, state["queues"])))}


def is_balanced(state: State, me: str) -> bool:
    """Whether an instance owns the queues that are due to it, and no others."""
    dues = due(state)
    return all((share["owner"] == me) == (dues[int(queue)] == me) for queue, share in state["queues"].items())


def leave(state: State, me: str, cursors: Mapping[int, object]) -> State:
    """The state without this instance, whose queues are free at once."""
    queues = {
        queue: {"owner": None, "cursor": cursors.get(int(queue), share["cursor"])} if share["owner"] == me else share
        for queue, share in state["queues"].items()
    }
    members = {name: lease for name, lease in state["members"].items() if name != me}
    return {**state, "members": members, "queues": queues}


def rewound(state: State | None, cursors: Mapping[int, object], first_round: int, table: str) -> State:
    """The state in which all queues are free and begin at these cursors; live instances take them again.

    Args:
        state: the stored state.
        cursors: cursors of all queues of the topic, as JSON.
        first_round: round of first attempts from now on; their receipts must outrank those of the reading before.
        table: id of the topic's table, in which the cursors are places.
    """
    free = {str(queue): {"owner": None, "cursor": cursor} for queue, cursor in cursors.items()}
    rounds = [*first_rounds(state), first_round]
    return {"members": (state or EMPTY)["members"], "queues": free, "rounds": rounds, "table": table}


def first_rounds(state: State | None) -> tuple[int, ...]:
    """The round of first attempts of each reading; the last one is the current reading's."""
    return tuple((state or EMPTY).get("rounds", (0,)))


def cursors(state: State) -> dict[int, Cursor]:
    """The group's cursor in each queue that it has read."""
    kept = {int(queue): share["cursor"] for queue, share in state["queues"].items()}
    return {queue: Cursor.of_json(cursor) for queue, cursor in kept.items() if cursor}


def owned(state: State, me: str) -> dict[int, Any]:
    """Queues of an instance, with their cursors as JSON; None for a queue that nobody has read."""
    return {int(queue): share["cursor"] for queue, share in state["queues"].items() if share["owner"] == me}


class Watch:
    """Tells by their beats which members live.

    Args:
        silence_s: a member is gone when its beat stands still for so many seconds, or for its own lease if longer.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._seen: dict[str, tuple[object, float]] = {}
        self._changed: set[str] = set()

    def gone(
        self, members: Mapping[str, object], now_s: float, leases: Mapping[str, float] = MappingProxyType({})
    ) -> set[str]:
        """The members that are gone.

        Args:
            members: beats by member. None for a member without a beat: it has just joined, or others took it for gone.
            now_s: the time, by a monotonic clock of this process.
            leases: leases by member, s.
        """
        for name, beat in members.items():
            if name not in self._seen:
                self._seen[name] = beat, now_s
            elif self._seen[name][0] != beat:
                self._seen[name] = beat, now_s
                self._changed.add(name)
        silence_s = {name: max(self._silence_s, leases.get(name, 0)) for name in members}
        return {name for name in members if now_s - self._seen[name][1] > silence_s[name]}

    def has_seen_alive(self, name: str) -> bool:
        """Whether a member's beat has changed since it was first seen."""
        return name in self._changed
