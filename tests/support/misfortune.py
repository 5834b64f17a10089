"""What goes wrong in a round of the campaign, chosen by a seed: inside the coordinator, to its processes, around it."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.support.faults import OTHERS, TABLES, WriteFault

_DAY_MS = 86_400_000
_MOMENTS = ("before", "after")
_TARGETS = ("python", "jvm", "both")
_CHANGES: tuple[dict[str, Any], ...] = (
    {"topics.allowed": ["a", "b"]},
    {"topics.dedup": {"a": {"by": "message_id", "window": "1d"}}},
    {"topics.dedup": {"b": {"by": "message_id", "window": "5s"}}, "trigger_interval": "1s"},
)


@dataclass(frozen=True)
class Action:
    """Something that is done to the processes of a round.

    Attributes:
        at: when, s after the coordinator has begun.
        name: `kill python`, `kill jvm`, `kill both`, `freeze`, `broker frozen`, `broker killed`, `disk full`.
        seconds: how long it lasts.
    """

    at: float
    name: str
    seconds: float = 0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.name} at {self.at:.1f} s{lasts}"


@dataclass
class Misfortune:
    """All that goes wrong in one round.

    Attributes:
        serves: whether the coordinator serves for `seconds`, or works off what is there.
        maintains: whether tables are maintained after a clean end; a run that serves ends before its own has ended.
        most: records that a landing takes.
        clock: as in `coordinator_child.Plan`.
        checkpoints: whether they are `deleted`, `older` ones, or those of the other query, `foreign`; "" for neither.
        changes: of the configuration, for this round: what it allows and shows is what was sent.
    """

    serves: bool
    seconds: float = 5
    maintains: bool = False
    most: int = 50
    writes: list[WriteFault] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    clock: Sequence[float] = ()
    checkpoints: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def plan(self) -> dict[str, Any]:
        """What the coordinator's process has to know."""
        writes = [asdict(each) for each in self.writes]
        how = {"serves": self.serves, "maintains": self.maintains, "most": self.most, "vacuums": False}
        return {**how, "writes": writes, "clock": list(self.clock), "changes": self.changes}

    @property
    def is_harmless(self) -> bool:
        """Whether no error can come of it."""
        harmless = all(each.effect == "delay" for each in self.writes)
        return harmless and all(each.name == "freeze" for each in self.actions) and not self.clock

    @property
    def kills(self) -> bool:
        names = [each.effect for each in self.writes] + [each.name for each in self.actions]
        return any(name.startswith("kill") for name in names)

    def __str__(self) -> str:
        way = f"serves {self.seconds:.0f} s" if self.serves else "works off what is there"
        wrong = [*map(str, self.writes), *map(str, self.actions)]
        if self.clock:
            ahead_ms, begin_s, seconds = self.clock
            wrong.append(f"clock {ahead_ms / _DAY_MS:+.0f} day from {begin_s:.0f} s for {seconds:.0f} s")
        if self.checkpoints:
            wrong.append(f"checkpoints {self.checkpoints}")
        wrong += [f"{key} {value}" for key, value in self.changes.items()]
        return f"{way}; {', '.join(wrong) or 'nothing wrong'}"


class Fate:
    """Chooses what goes wrong.

    Args:
        chosen: the source of all choices.
        has_disk: whether the disk can be made full.
    """

    def __init__(self, chosen: random.Random, has_disk: bool) -> None:
        self._chosen, self._has_disk = chosen, has_disk
        self._kinds: dict[Callable[[Misfortune], None], int] = {
            self._kill_at_write: 4,
            self._kill_at_any_time: 3,
            self._failing_write: 3,
            self._slow_write: 5,
            self._freeze: 2,
            self._broker_frozen: 2,
            self._broker_killed: 1,
            self._clock: 1,
            self._checkpoints: 1,
            self._configuration: 2,
            self._disk: 1,
        }

    def next(self, *, serves: bool, maintains: bool) -> Misfortune:
        """One round's: one to three things."""
        found = Misfortune(serves, seconds=self._chosen.uniform(3, 6), maintains=maintains)
        count = self._chosen.choice([1, 1, 2, 2, 3])
        for kind in self._chosen.choices(list(self._kinds), list(self._kinds.values()), k=count):
            kind(found)
        found.actions.sort(key=lambda each: each.at)
        return found

    def _table(self) -> str:
        first = ("positions",) * 8 + TABLES + OTHERS
        return self._chosen.choice(first)

    def _write(self, effect: str, seconds: float = 0) -> WriteFault:
        moment, nth = self._chosen.choice(_MOMENTS), self._chosen.choice([1, 1, 2, 3])
        return WriteFault(self._table(), moment, effect, nth, seconds)

    def _kill_at_write(self, found: Misfortune) -> None:
        fault = self._write(f"kill {self._chosen.choice(_TARGETS)}")
        is_within = fault.effect == "kill both" and fault.step != "files" and self._chosen.random() < 0.5
        found.writes.append(replace(fault, moment="within") if is_within else fault)

    def _kill_at_any_time(self, found: Misfortune) -> None:
        found.actions.append(Action(self._at(), f"kill {self._chosen.choice(_TARGETS)}"))

    def _failing_write(self, found: Misfortune) -> None:
        if self._chosen.random() < 0.25:
            found.writes.append(WriteFault("any", "before", "full disk", self._chosen.randrange(1, 20), 1.0))
        else:
            found.writes.append(self._write("fail"))

    def _slow_write(self, found: Misfortune) -> None:
        found.writes.append(self._write("delay", self._chosen.uniform(1, 3)))

    def _freeze(self, found: Misfortune) -> None:
        found.actions.append(Action(self._at(), "freeze", self._chosen.uniform(1, 3)))

    def _broker_frozen(self, found: Misfortune) -> None:
        found.actions.append(Action(self._at(), "broker frozen", self._chosen.uniform(1, 4)))

    def _broker_killed(self, found: Misfortune) -> None:
        found.actions.append(Action(self._at(), "broker killed"))

    def _clock(self, found: Misfortune) -> None:
        ahead = self._chosen.choice([_DAY_MS, -_DAY_MS])
        found.clock = (ahead, self._chosen.choice([0, 2]), self._chosen.choice([2, 60]))

    def _checkpoints(self, found: Misfortune) -> None:
        found.checkpoints = self._chosen.choice(["deleted", "older", "foreign"])

    def _configuration(self, found: Misfortune) -> None:
        found.changes = self._chosen.choice(_CHANGES)

    def _disk(self, found: Misfortune) -> None:
        if self._has_disk:
            found.actions.append(Action(self._at(), "disk full", self._chosen.uniform(0.5, 2)))

    def _at(self) -> float:
        return self._chosen.uniform(0.3, 6)


_SIZE = 4 << 30


class SmallDisk:
    """A directory on a tmpfs, whose limit makes it full for a while; an ordinary one where nothing can be mounted.

    Args:
        place: the directory.
        size: in bytes.
    """

    def __init__(self, place: Path, size: int = _SIZE) -> None:
        self.place, self.size, self.is_mounted = place, size, False

    def __enter__(self) -> Self:
        self.place.mkdir(parents=True, exist_ok=True)
        self.is_mounted = self._mount("-t", "tmpfs", "-o", f"size={self.size}", "campaign")
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.place)], check=False)

    @contextmanager
    def full(self) -> Iterator[None]:
        held = os.statvfs(self.place)
        used = (held.f_blocks - held.f_bfree) * held.f_frsize
        self._mount("-o", f"remount,size={used + 8_192}")
        try:
            yield
        finally:
            self.resize(self.size)

    def resize(self, size: int) -> None:
        self._mount("-o", f"remount,size={size}")

    def _mount(self, *arguments: str) -> bool:
        if os.geteuid() != 0:
            return False
        return subprocess.run(["mount", *arguments, str(self.place)], capture_output=True, check=False).returncode == 0
