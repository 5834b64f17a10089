"""The coordinator: landing and coordination in one Spark application, until SIGTERM or Ctrl-C.

./spark-submit.sh run --conf FILE [--set key=value]... [--available-now]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from commitlake import config
from commitlake.coordinator import Coordinator
from commitlake.kafka.admin_client import probe
from commitlake.kafka.embedded import provide
from commitlake.recovery import fencing
from commitlake.spark import process, session


def run(arguments: Sequence[str]) -> None:
    """Runs the coordinator until a signal comes or, with --available-now, until all that is there is done."""
    parser = argparse.ArgumentParser(prog="./spark-submit.sh run", description="Run the coordinator.")
    parser.add_argument("--conf", help="a YAML file; defaults hold for what it does not say")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="wins over the file")
    parser.add_argument("--available-now", action="store_true", help="work off all that is there, then end")
    given = parser.parse_args(arguments)
    told = config.load(given.conf, given.set)
    with fencing.lock(told) as lock, provide(told) as conf:  # the lock first: its error names who runs already
        probe(conf)
        spark = session.build(conf, app_name="commitlake-run")
        try:
            with Coordinator(spark, conf, lock).start(available_now=given.available_now) as coordinator:
                if not given.available_now:
                    _serve(coordinator)
        finally:
            spark.stop()


def _serve(coordinator: Coordinator) -> None:
    stop = process.stop_on_signals()
    conf = coordinator.config
    where = f"epoch={coordinator.epoch} warehouse={conf.warehouse} kafka={conf.kafka.bootstrap_servers}"
    print(f"READY {where}", flush=True)
    while not stop.is_set() and not coordinator.await_termination(timeout=0.2):
        pass


if __name__ == "__main__":
    process.main(run, exit_when_stopped=0)
