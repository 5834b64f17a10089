"""A bad week in an hour: a backlog after an outage, and then all that goes wrong while an order service goes on.

    .venv/bin/python -m tests.bench.bad_week --seconds 3600 --plot docs/bad-week.svg

A coordinator and a standby, as users start them; whichever ends is replaced by another standby. Meanwhile broker and
coordinators are killed, the disk of the tables is full for a minute (a tmpfs, so root only), tables are compacted each
minute, and a producer group is gone for the whole time. Prints what happens when, and a line every 30 s. Ends with a
comparison with the service's database, and an audit. Wrong clocks are the campaign's: with libfaketime neither the JVM
nor py4j works.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from deltalake import DeltaTable
from tests.bench import rig
from tests.bench.observer import TableLog
from tests.support.campaign_run import UnsteadyBroker
from tests.support.lake import Lake
from tests.support.order_load import SETTINGS, TOPIC, OrderLoad
from tests.support.polling import wait_for
from tests.support.small_disk import SmallDisk

_LOST = 5_000
"""Transactions of the group that is gone."""
_NEAR_S = 40  # apart, labels of the picture would lie on each other
_FULL_S, _END_S, _AUDIT_S = 60, 900, 1_800
_TIMINGS = {"kafka.queues": 4, "maintenance.interval": "1m", "standby_after": "5s"}


@dataclass
class Week:
    """What runs, and what has happened.

    Attributes:
        events: what went wrong, by the seconds since the begin.
        standing: the coordinator that has the warehouse or will have it next, and the standby.
    """

    running: rig.Rig
    disk: SmallDisk
    lake: Lake
    begun: float = field(default_factory=time.time)
    events: list[tuple[float, str]] = field(default_factory=list)
    standing: list[rig.Child] = field(default_factory=list)
    started: int = 0

    def tell(self, what: str) -> None:
        """Notes an event, and says it."""
        self.events.append((time.time() - self.begun, what))
        self.say(what)

    def say(self, what: str) -> None:
        """Prints it with its time."""
        print(f"{time.time() - self.begun:6.0f} s  {what}", flush=True)

    def look_after(self) -> None:
        """Starts what is missing, as a supervisor does: two are to stand."""
        ended = [each for each in self.standing if not each.is_running]
        for each in ended:
            last = each.output.strip().splitlines()[-1:] or ["no word"]
            self.say(f"a coordinator ended: {last[0][:200]}")
        self.standing = [each for each in self.standing if each.is_running]
        while len(self.standing) < 2:
            self.standing.append(self._next())

    def _next(self) -> rig.Child:
        self.started += 1
        logs = self.running.place / f"coordinator-{self.started}"
        return self.running.coordinator("--standby", place=logs, **self.lake.settings)

    def kill_a_coordinator(self) -> None:
        """SIGKILL to the one that has the warehouse; once there is one."""
        wait_for(self.working, _END_S)
        self.tell("coordinator killed")
        self.working()[0].kill()

    def working(self) -> list[rig.Child]:
        """The one that has the warehouse, if there is one."""
        self.look_after()
        return [each for each in self.standing if "READY" in each.output]

    def kill_the_broker(self) -> None:
        """SIGKILL to the broker, and a start on its log."""
        self.tell("broker killed")
        self.running.broker.crash()  # type: ignore[attr-defined]
        self.tell("broker is back")

    def fill_the_disk(self) -> None:
        """The disk of the tables has no room for a minute."""
        if not self.disk.is_mounted:
            self.tell("no disk of its own could be mounted (root only); it is not full")
            return
        self.tell("disk full")
        with self.disk.full():
            time.sleep(_FULL_S)
        self.tell("disk has room again")

    def misfortunes(self, seconds: float) -> list[tuple[float, Callable[[], None]]]:
        """What goes wrong, and when."""
        acts = [
            (0.15, self.kill_the_broker),
            (0.25, self.kill_a_coordinator),
            (0.40, self.fill_the_disk),
            (0.55, self.kill_a_coordinator),
            (0.65, self.kill_the_broker),
            (0.75, self.kill_a_coordinator),
        ]
        return [(share * seconds, act) for share, act in acts]


def main() -> None:
    """Runs it and prints; fails when something is missing or doubled, or the audit finds something."""
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--backlog", type=int, default=360_000, help="transactions from before the start: an hour's")
    parser.add_argument("--plot", type=Path, help="a file for the figures over time")
    given = parser.parse_args()
    with rig.Rig(given, UnsteadyBroker) as running, SmallDisk(running.place / "disk") as disk:
        with Lake(running.servers, rig.PREFIX, disk.place, **SETTINGS, **_TIMINGS) as lake:
            week = Week(running, disk, lake)
            play(week, given)
            week.tell("audit")
            audit = rig.Child(rig.command("audit", "--set", f"warehouse={lake.warehouse}"), running.place / "audit.log")
            audit.wait(_AUDIT_S)
            print(audit.output, end="", flush=True)
            ages = {name: oldest_ages(lake.warehouse / "topics" / name) for name in (TOPIC, "bulk")}
        if given.plot:
            plot(week, ages, given.plot)
    late = [age for _, age in ages[TOPIC]]
    rig.report("bad_week", given, {"age of the oldest row": {"p50_s": np.median(late), "max_s": max(late)}})


def play(week: Week, given: argparse.Namespace) -> None:
    """The backlog, the week, and the way of all to its end."""
    fill = {
        "backlog": ("--topic", "bulk"),
        "lost": ("--topic", "lost", "--group", "gone", "--commit", 0, "--rollback", 0),
    }
    for name, count in (("backlog", given.backlog), ("lost", _LOST)):
        week.running.load("--fill", count, *fill[name], name=name).wait(_END_S)
    due = given.backlog * 900 // 1_000
    load = OrderLoad(week.lake, week.running.place)
    week.begun, coming = time.time(), week.misfortunes(given.seconds)
    week.tell(f"{given.backlog} transactions wait, and {_LOST} of a group that is gone")
    wait_for(week.working, _END_S)  # producers need its settings
    with load.steadily():
        told = 0.0
        while (passed := time.time() - week.begun) < given.seconds:
            week.look_after()
            if coming and passed >= coming[0][0]:
                coming.pop(0)[1]()
            if passed >= told + 30:
                told = passed
                print(f"{passed:6.0f} s  {load.acknowledged()} sent, {shown(week)} shown", flush=True)
            time.sleep(1)
        week.tell("the service stops sending")
        load.stop_sending()
        deadline = time.monotonic() + _END_S
        while load.missing() or shown(week)["bulk"] < due:
            assert time.monotonic() < deadline, f"missing: {len(load.missing())}, {shown(week)}"
            week.look_after()
            time.sleep(5)
    week.tell("all is there")
    for each in reversed(week.standing):
        each.stop()
    load.assert_shown()
    bulk = DeltaTable(week.lake.warehouse / "topics" / "bulk").to_pyarrow_table(columns=["message_id"])["message_id"]
    assert (len(bulk), len(bulk.unique())) == (due, due), f"{len(bulk)} rows, {len(bulk.unique())} ids, {due} due"
    assert DeltaTable(week.lake.warehouse / "topics" / "lost").to_pyarrow_table().num_rows == 0
    print(
        f"{len(load.booked())} orders and {due} of the backlog are shown once; {week.started} coordinators", flush=True
    )


def shown(week: Week) -> dict[str, int]:
    """How many rows consumers see, by topic."""
    return {name: TableLog(week.lake.warehouse / "topics" / name).rows() for name in (TOPIC, "bulk")}


def oldest_ages(table: Path) -> list[tuple[float, float]]:
    """Of each commit its time, and how long its oldest row had waited since its half message, both in s."""
    return [(commit.at, commit.oldest_age) for commit in TableLog(table).appends()]


def plot(week: Week, ages: dict[str, list[tuple[float, float]]], path: Path) -> None:
    """Draws how old the oldest row of each commit was, and what went wrong when."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(10, 5), layout="constrained")
    for name, points in ages.items():
        minutes, waited = [(at - week.begun) / 60 for at, _ in points], [age for _, age in points]
        axis.plot(minutes, waited, ".", markersize=3, label=name)
    axis.set_yscale("log")
    axis.set_ylabel("s from the half message to the row")
    axis.set_xlabel("minutes")
    axis.legend(loc="upper right")
    labels: dict[float, str] = {}
    for second, what in week.events:
        axis.axvline(second / 60, color="grey", linewidth=0.5)
        near = next((other for other in labels if second - other < _NEAR_S), second)
        labels[near] = f"{labels[near]}; {what}" if near in labels else what
    for second, text in labels.items():
        axis.text(second / 60, axis.get_ylim()[0], f" {text}", rotation=90, fontsize=6, va="bottom")
    figure.savefig(path)


if __name__ == "__main__":
    main()
