"""Kills a coordinator at random steps while transactions keep coming, then compares every row with what was sent.

python -m tests.recovery.sweep --seed 1 --kills 50
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from tests.lake import Lake
from tests.recovery.traffic import HASTY, STEPS, Traffic, delete_checkpoints, killed_at


def sweep(lake: Lake, spark: SparkSession, seed: int, kills: int) -> None:
    """Kills `kills` times; fails when a row is lost, doubled or different. The same seed kills at the same places."""
    chosen = random.Random(seed)
    traffic = Traffic(lake)
    done = 0
    while done < kills:
        traffic.send()
        step, moment = chosen.choice(STEPS), chosen.choice(["before", "after"])
        nth = chosen.choice([1, 2]) if step.endswith(":topic") else 1  # the other tables get one append a batch
        child = killed_at(lake, step, moment, nth)
        assert child.returncode in (0, -signal.SIGKILL), child.stderr[-4_000:]
        done += child.returncode != 0
        print(
            f"seed {seed}: {step} {moment} {nth}: {'killed' if child.returncode else 'not reached'} {done}/{kills}",
            flush=True,
        )
        if chosen.random() < 0.3:
            delete_checkpoints(lake)
    traffic.settle(spark)
    traffic.assert_outcome()


def main() -> None:
    from commitlake import session
    from commitlake.kafka.embedded import EmbeddedBroker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    spark = session.build(master="local[2]", short_lived=True)
    with tempfile.TemporaryDirectory() as place, EmbeddedBroker(Path(place, "kafka")) as broker:
        lake = Lake(broker.bootstrap_servers, "sweep.", Path(place), **HASTY)
        sweep(lake, spark, given.seed, given.kills)
        lake.close()
    spark.stop()
    print("nothing lost, nothing twice")


if __name__ == "__main__":
    main()
