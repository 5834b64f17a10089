"""Who of a group reads which queue: the rule, as a pure function of what is kept and what this instance knows.

Kept for a group and a topic: `members`, and `queues`, each with its owner and cursor. Beside it each member has a beat,
which changes while it lives. No clock is compared between machines: an instance is gone when its beat stands still by
another one's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from commitlake.clients.consumer.cursor import Cursor

State = dict[str, Any]
"""`{"members": {name: its lease, s}, "queues": {"<queue>": {"owner": name or None, "cursor": Cursor.to_json()}}}`

After a rewind also `rounds`, those of the first attempts of each reading; and `table`, the id of the topic's table,
since an instance joined: cursors are places in that one.
"""

EMPTY: State = {"members": {}, "queues": {}}


def turn(
    state: State,
    me: str,
    gone: Collection[str],
    queues: Collection[int],
    held: Collection[int],
    cursors: Mapping[int, object],
    lease_s: float = 15,
) -> State:
    """The state after this instance's turn; the same one when there is nothing to change.

    Where each queue has a member, others stand by: they join when one is gone, or a queue is new.

    Args:
        state: as it is kept.
        me: this instance.
        gone: other members whose beat stands still.
        queues: all queues of the topic.
        held: queues of which this instance has messages that are not finished; it keeps them until they are.
        cursors: of the queues that this instance reads, as JSON.
        lease_s: silence after which others take its queues.
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
    """Which member shall read each queue: they take turns, in the order of names and queues."""
    names = sorted(state["members"])
    return {queue: names[place % len(names)] for place, queue in enumerate(sorted(map(int, state["queues"])))}


def is_balanced(state: State, me: str) -> bool:
    """Whether an instance owns what is due to it, and nothing else."""
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
    """The state in which all queues are free and begin at these cursors, as JSON; live instances take them again.

    Args:
        state: as it is kept.
        cursors: of all queues of the topic.
        first_round: of first attempts from now on; their receipts must outrank those of the reading before.
        table: id of the topic's table, in which the cursors are places.
    """
    free = {str(queue): {"owner": None, "cursor": cursor} for queue, cursor in cursors.items()}
    rounds = [*first_rounds(state), first_round]
    return {"members": (state or EMPTY)["members"], "queues": free, "rounds": rounds, "table": table}


def first_rounds(state: State | None) -> tuple[int, ...]:
    """The rounds of first attempts: that of each reading, the last one now."""
    return tuple((state or EMPTY).get("rounds", (0,)))


def cursors(state: State) -> dict[int, Cursor]:
    """How far a group came in each queue that it has read."""
    kept = {int(queue): share["cursor"] for queue, share in state["queues"].items()}
    return {queue: Cursor.of_json(cursor) for queue, cursor in kept.items() if cursor}


def owned(state: State, me: str) -> dict[int, Any]:
    """Queues of an instance, with their cursors; None for one that nobody has read."""
    return {int(queue): share["cursor"] for queue, share in state["queues"].items() if share["owner"] == me}


class Watch:
    """Tells by their beats which members live.

    Args:
        silence_s: after so many seconds, or after its own lease where that is longer.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._seen: dict[str, tuple[object, float]] = {}
        self._changed: set[str] = set()

    def gone(
        self, members: Mapping[str, object], now_s: float, leases: Mapping[str, float] = MappingProxyType({})
    ) -> set[str]:
        """Members, given with their beats and leases, that are gone at `now_s`, a monotonic clock of this process.

        A beat may be absent, None: of a member that joined right now, or that others had taken for gone.
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
