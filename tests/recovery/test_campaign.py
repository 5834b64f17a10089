"""Coordinators that are killed, frozen, slowed down and misled, round after round, and an oracle that compares.

python -m tests.recovery.test_campaign --rounds 200 --seed 1

A round is traffic, a start with one to three faults (`tests/support/misfortune.py`), in each eighth maintenance, and a
comparison: Kafka's log and the producers' database against the ledger and the topic tables (`oracle`), a replay of
their logs and a group of consumers, rebuilds of what is open and a dump of the state store
(`coordinator_child`). Every fortieth round nothing goes wrong, and all must come to its end under steady traffic.

A changed configuration lets pass what is sent. A wrong clock is Python's only: the JVM's stays right. The disk is made
full where a tmpfs can be mounted, so as root. How long things take grows with the load of the machine.

Each finding is printed once, with its round. The exit code is 0 when there was none. The same seed chooses the same
faults and the same traffic; when exactly they meet differs from run to run. The test is a short one, with the faults
that have found most.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import SparkSession
from tests.support.brokers import UnsteadyBroker
from tests.support.coordinator_child import Rebuilds, different, without_parked
from tests.support.faults import WriteFault
from tests.support.kafka_log import KafkaLog
from tests.support.killing import KILLED, TOO_LONG, Run, Runs, delete_checkpoints
from tests.support.lake import Lake
from tests.support.misfortune import Action, Fate, Misfortune, SmallDisk
from tests.support.mixed_traffic import MixedTraffic, Shop
from tests.support.oracle import AddedFiles, Group, Oracle, Seen
from tests.support.polling import patience

from commitlake.protocol.clock import now_ms
from commitlake.tools.audit.audit import audit

TIMINGS = {
    "kafka.queues": 3,
    "trigger_interval": "200ms",
    "transaction.timeout": "1s",
    "transaction.check_interval": "1s",
    "transaction.check_repeat": "3s",
    "transaction.check_max": 2,
    "transaction.op_park_time": "3s",
    "maintenance.interval": "2s",
    "maintenance.retention": "30d",
}
"""A second or so for all that falls due; rows stay for as long as the oracle looks at them."""
END_S, READY_S, SETTLE_S = 180, 60, 180
"""On an idle machine: how long an end, a start and the way of all to its end may take."""
_SETTLES_EVERY, _REBUILDS_EVERY, _READS_EVERY = 40, 4, 2
_MAINTAINS_EVERY = 8
"""Runs that serve end before their maintenance has; without any, files grow and a round takes minutes after fifty."""
_BURSTS = ([3, 10, 30, 400], [4, 4, 4, 1])
"""How much comes before a start, and how often: the most are a backlog of many landings."""
_SHOWN_FINDINGS = 8
_ALL = 5_000
"""Records of a landing while all comes to its end: a backlog must not be what it waits for."""


class Campaign:
    """One warehouse, one broker, and what has been found so far.

    Args:
        place: a directory.
        seed: chooses faults and traffic.
        margin_ms: by how much a recall must come before its message is due, to count as in time.
        spark: a session to compare with; None for one of its own, which ends with it.
    """

    def __init__(self, place: Path, seed: int, margin_ms: int = 0, spark: SparkSession | None = None) -> None:
        self._place, self._seed, self._margin_ms = place, seed, margin_ms
        self._stack = ExitStack()
        self._chosen = random.Random(seed)
        self._given = self._spark = spark
        self._number = 0
        self.found: dict[str, int] = {}
        """Findings, and in which round each came first."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._broker = UnsteadyBroker(self._place / "kafka")
            stack.enter_context(self._broker)
            self._disk = stack.enter_context(SmallDisk(self._place / "disk"))
            servers = self._broker.bootstrap_servers
            self.lake = stack.enter_context(Lake(servers, "campaign.", self._place / "disk", **TIMINGS))
            (self._place / "logs").mkdir()
            self._runs = stack.enter_context(Runs(self.lake.settings, self._place / "logs"))
            self._log = KafkaLog(self.lake)
            stack.callback(self._log.close)
            self._shop = stack.enter_context(Shop(self.lake, self._seed))
            self.traffic = MixedTraffic(self.lake, self._shop, self._seed)
            self._oracle = Oracle(self.lake, self._log, self._shop.decided, self._margin_ms)
            self._added, self._group = AddedFiles(self.lake), Group(self.lake)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._spark is not None and self._given is None:
                self._spark.stop()
        finally:
            self._stack.close()  # also where Ctrl-C has ended the JVM

    def play(self, rounds: int) -> None:
        """Rounds whose faults the seed chooses, and the end."""
        fate = Fate(self._chosen, self._disk.is_mounted)
        for number in range(1, rounds + 1):
            if number % _SETTLES_EVERY == 0:
                self.settle()
            else:
                self.round(fate.next(serves=number % 2 == 1, maintains=number % _MAINTAINS_EVERY == _REBUILDS_EVERY))
        self.end()

    def round(self, wrong: Misfortune) -> None:
        """Traffic, a start in which something goes wrong, a comparison."""
        begun, until = self._begin(), 0
        self._spoil_checkpoints(wrong.checkpoints)
        self.traffic.burst(*self._chosen.choices(*_BURSTS))
        until = self.traffic.readable_until()
        run = self._runs.next(kills=wrong.kills)
        run.begin(**wrong.plan())
        outcome = self._under_way(run, wrong)
        state = run.said("OPEN")
        compared = self._compare(outcome, wrong, until, state)
        self._tell(f"queue {self.traffic.queue}; {wrong} -> {outcome[:100]}; {compared}", begun)

    def _spoil_checkpoints(self, how: str) -> None:
        """They vanish, or become those of an earlier round, or those of another query."""
        there, kept = self.lake.root / "checkpoints", self._place / "older"
        if how:
            delete_checkpoints(self.lake)
        if how == "older" and kept.exists():
            shutil.copytree(kept, there)
        if how == "foreign":
            self._swap(kept, there)
        if not how and there.exists():
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(there, kept)

    def _swap(self, kept: Path, there: Path) -> None:
        """Each query finds directories of the other, with names of epochs to come."""
        others = {"landing": "coordination", "coordination": "landing"}
        for place in (place for name in others for place in kept.glob(f"*/{name}/*")):
            other = others[place.parent.name]
            epoch = len(self.lake.rows("epochs")) + self._chosen.choice([1, 2, 3])
            shutil.copytree(place, there / place.parts[-3] / other / f"{epoch}-{place.name.partition('-')[2]}")

    def _tell(self, what: str, begun: float) -> None:
        print(f"round {self._number} seed {self._seed}: {what}; {time.monotonic() - begun:.1f} s", flush=True)

    def _begin(self) -> float:
        self._number += 1
        self.traffic.queue = self._chosen.randrange(self.traffic.queues)
        if self._chosen.random() < 0.3:
            self.traffic.resume_discarded(2)
        return time.monotonic()

    def _under_way(self, run: Run, wrong: Misfortune) -> str:
        """Until the coordinator has ended; returns how."""
        word = "READY" if wrong.serves else "BEGUN"
        _until(lambda: run.has_ended() or run.said(word) is not None, READY_S * _patience())
        begun, slow = time.monotonic(), _patience()
        with self.traffic.steadily() if wrong.serves else nullcontext():
            for action in wrong.actions:
                _until(run.has_ended, begun + action.at * slow - time.monotonic())
                self._do(action, run)
            if wrong.serves:
                _until(run.has_ended, begun + wrong.seconds * slow - time.monotonic())
                run.stop()
        return run.end(END_S * _patience())

    def _do(self, action: Action, run: Run) -> None:
        if run.has_ended():
            return
        if action.name.startswith("kill"):
            run.kill(action.name.split()[1])
        elif action.name == "freeze":
            run.freeze(action.seconds)
        elif action.name == "broker frozen":
            self._broker.freeze(action.seconds)
        elif action.name == "broker killed":
            self._broker.crash()
        elif action.name == "disk full":
            with self._disk.full():
                time.sleep(action.seconds)

    # comparisons

    def _compare(self, outcome: str, wrong: Misfortune, until: int, state: str | None) -> str:
        seen = self._oracle.look()
        self._note(self._oracle.wrong(seen))
        self._note(self._bad_end(outcome, wrong))
        compared = [f"{seen.rows} rows"]
        if outcome == "clean" and not wrong.serves:
            self._note(f"after a clean end {each}" for each in self._oracle.missing(seen, until, settled=False))
            compared.append("all there")
        if self._number % _READS_EVERY == 0:
            compared.append(self._readers(seen))
        if self._number % _REBUILDS_EVERY == 0:
            compared.append(self._rebuilds(state if outcome == "clean" else None))
        return "compared " + ", ".join(compared)

    def _bad_end(self, outcome: str, wrong: Misfortune) -> Iterator[str]:
        if outcome == TOO_LONG and not wrong.kills:
            yield f"round {self._number} {outcome}: {wrong}"
        if outcome not in ("clean", KILLED, TOO_LONG) and wrong.is_harmless:
            yield f"round {self._number} failed: {outcome[:300]}: {wrong}"

    def _readers(self, seen: Seen) -> str:
        """Streams and consumers: nothing twice, and nothing that the tables do not show."""
        self._note(self._added.read())
        self._group.read()
        for name, places in (("a stream", self._added.seen), ("a group", self._group.got)):
            self._note(f"{name} saw {n} times: {place}" for place, n in places.items() if n > 1)
            self._note(f"{name} never saw: {place}" for place in set(seen.shown_at) - set(places))
        return f"{self._added.seen.total()} streamed, {self._group.got.total()} consumed"

    def _rebuilds(self, state: str | None) -> str:
        rebuilds = Rebuilds(self._session(), self.lake)
        count, differences = rebuilds.differences(self._chosen, older=2)
        self._note(f"round {self._number} {each}" for each in differences)
        if state is None:
            return f"{count} rebuilds"
        live, whole = without_parked(json.loads(state)), without_parked(rebuilds.whole().elements())
        self._note(f"round {self._number} {each}" for each in different(live, whole, "in the state store", "rebuilt"))
        return f"{count} rebuilds, {live.total()} rows of state"

    def _session(self) -> SparkSession:
        from commitlake.spark import session

        if self._spark is None:
            self._spark = session.build(master="local[2]", app_name="campaign", short_lived=True)
        return self._spark

    def _note(self, findings: Iterable[str]) -> None:
        new = [each for each in dict.fromkeys(findings) if each not in self.found]
        self.found |= dict.fromkeys(new, self._number)
        for each in new[:_SHOWN_FINDINGS]:
            print(f"FOUND in round {self._number}: {each}", flush=True)
        if len(new) > _SHOWN_FINDINGS:
            print(f"FOUND in round {self._number}: {len(new) - _SHOWN_FINDINGS} more like these", flush=True)

    # all comes to its end

    def settle(self, *, quietly: bool = False) -> None:
        """A start in which nothing goes wrong, until all has come to its end; under steady traffic, or in quiet."""
        begun = self._begin()
        if quietly:
            _until(self._shop.later.is_idle, 10)
        until = now_ms() + (5_000 if quietly else 0)
        run = self._runs.next(kills=False)
        run.begin(**Misfortune(serves=True, most=_ALL).plan())
        _until(lambda: run.has_ended() or run.said("READY") is not None, READY_S * _patience())
        with nullcontext() if quietly else self.traffic.steadily(0.5):
            left = self._wait_until_there(run, until)
        run.stop()
        outcome = run.end(END_S * _patience())
        self._note(f"not in time after a start: {each}" for each in left)
        self._note(self._bad_end(outcome, Misfortune(serves=True)))
        seen = self._oracle.look()
        self._note(self._oracle.wrong(seen))
        compared = f"{seen.rows} rows, {self._readers(seen)}, {self._rebuilds(None)}"
        self._note(f"audit in round {self._number}: {each}" for each in self._audit())
        way = "quiet" if quietly else "steady traffic"
        self._tell(f"{way}, nothing wrong -> {outcome}; {len(left)} missing; compared {compared}, audit", begun)

    def _wait_until_there(self, run: Run, until: int) -> Sequence[str]:
        """What is missing in the end; a hanging transaction begins each second, so its group always has to answer."""
        deadline = time.monotonic() + SETTLE_S * _patience()
        while True:
            self.traffic.hang() if now_ms() > until else None
            left = self._oracle.missing(self._oracle.look(), min(until, now_ms()), settled=True)
            is_over = now_ms() > until and not left
            if is_over or run.has_ended() or time.monotonic() > deadline:
                return left
            time.sleep(1)

    def _audit(self) -> list[str]:
        report = audit(self._session(), str(self.lake.tables))
        findings = [str(each) for each in report.findings]
        return findings + [f"counts of {each.topic}: {each}" for each in report.topics if not each.holds]

    def end(self) -> None:
        """A quiet time; then all that is expected is there."""
        self.settle(quietly=True)
        print(f"seed {self._seed}: {self._number} rounds, {self.traffic.sent} things sent, {len(self.found)} findings")


def _until(done: Callable[[], object], seconds: float) -> None:
    """Waits until something is so, at most for some time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not done():
        time.sleep(0.05)


def _patience() -> float:
    return min(5.0, patience())


ROUNDS = (
    Misfortune(serves=True, actions=[Action(1, "freeze", 1.5), Action(4, "kill both")]),
    Misfortune(serves=False, writes=[WriteFault("positions", "before", "fail", nth=2)], checkpoints="deleted"),
)
"""Frozen and killed, cut short after a landing's tables; without checkpoints."""


@pytest.mark.short(core_seconds=80)  # of all faults together
def test_a_few_rounds_keep_all_promises(spark: SparkSession, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed=1, spark=spark) as campaign:
        for wrong in ROUNDS:
            campaign.round(wrong)
        campaign.end()
    assert campaign.found == {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recall-margin", type=int, default=0, help="ms before the due time at which a recall is late")
    parser.add_argument("--keep", type=Path, help="a new directory for Kafka and logs, which then stay")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="commitlake-campaign-", ignore_cleanup_errors=True) as temporary:
        place = given.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        with Campaign(place, given.seed, given.recall_margin) as campaign:
            campaign.play(given.rounds)
        sys.exit(1 if campaign.found else 0)


if __name__ == "__main__":
    main()
