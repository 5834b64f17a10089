"""Kills a coordinator at random steps while transactions keep coming, then compares every row with what was sent.

python -m tests.recovery.random_kills --seed 1 --kills 50
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.killing import KILLED, Runs, delete_checkpoints
from tests.support.lake import Lake
from tests.support.traffic import HASTY, STEPS, Traffic


class RandomKills:
    """Starts a coordinator again and again; the same seed kills it at the same places."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.traffic = lake, Traffic(lake)
        self.chosen = random.Random(seed)
        self.kills = 0

    def run(self, kills: int) -> None:
        """Kills `kills` times."""
        with Runs(self.lake.settings, self.lake.root) as coordinators:
            while self.kills < kills:
                begun = time.monotonic()
                self.traffic.send()
                self.traffic.resume_discarded(lambda: self.chosen.random() < 0.1)
                outcome = self._kill(coordinators)
                spoilt = self._spoil_checkpoints()
                print(f"{self.kills}/{kills} {outcome}{spoilt}, {time.monotonic() - begun:.0f} s", flush=True)

    def _kill(self, coordinators: Runs) -> str:
        step, moment = self.chosen.choice(STEPS), self.chosen.choice(["before", "within", "after"])
        nth = self.chosen.choice([1, 2]) if step.endswith(":topic") else 1  # the other tables get one append a batch
        how = coordinators.killed_at(step, moment, nth)
        assert how in ("clean", KILLED)
        self.kills += how == KILLED
        return f"{how}: {moment} {step} {nth}"

    def _spoil_checkpoints(self) -> str:
        """Checkpoints vanish, or become older ones, or those of another query."""
        there, kept = self.lake.root / "checkpoints", self.lake.root / "older"
        if not there.exists():  # deleted, and the next start was killed before it had made one
            return ""
        if not kept.exists() or self.chosen.random() < 0.2:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(there, kept)
            return ""
        spoil = self.chosen.choice(["", "", "; deleted", "; older", "; foreign"])
        if spoil:
            delete_checkpoints(self.lake)
        if spoil == "; older":
            shutil.copytree(kept, there)
        if spoil == "; foreign":
            self._swap(kept, there)
        return spoil

    def _swap(self, kept: Path, there: Path) -> None:
        """Each query finds directories of the other, with names of epochs to come."""
        others = {"landing": "coordination", "coordination": "landing"}
        for place in (place for name in others for place in kept.glob(f"*/{name}/*")):
            other = others[place.parent.name]
            epoch = len(self.lake.rows("epochs")) + self.chosen.choice([1, 2, 3])
            shutil.copytree(place, there / place.parts[-3] / other / f"{epoch}-{place.name.partition('-')[2]}")

    def compare(self, spark: SparkSession) -> None:
        """Lets the rest end, and compares; fails when a row is lost, doubled or different."""
        self.traffic.settle(spark)
        rows, lost, doubled = self.traffic.differences()
        print(f"{self.kills} kills, {rows} rows compared, {lost} lost, {doubled} doubled", flush=True)
        self.traffic.assert_outcome()


def main() -> None:
    from commitlake.kafka.embedded import EmbeddedBroker
    from commitlake.spark import session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedBroker(Path(place, "kafka")) as broker,
        Lake(broker.bootstrap_servers, "kills.", Path(place), **HASTY) as lake,
    ):
        random_kills = RandomKills(lake, given.seed)
        random_kills.run(given.kills)
        spark = session.build(master="local[2]", short_lived=True)
        random_kills.compare(spark)
        spark.stop()


if __name__ == "__main__":
    main()
