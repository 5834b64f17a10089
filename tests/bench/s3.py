"""One transaction at a time on a bucket of moto's S3 API: from the commit in Kafka to the row, and the requests.

    .venv/bin/python -m tests.bench.s3
    .venv/bin/python -m tests.bench.s3 --local-checkpoints

moto answers in some ms where nothing else runs, AWS in 10 to 100 ms: the number of requests says more than the time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import rig
from tests.support import tables
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.s3 import bucket

_WAIT_S = 300
_SETTLED_S = 5
_QUEUES = {"kafka.queues": 4}  # as the coordinator has them
_KINDS = ("S3 reads", "S3 lists", "S3 writes", "DynamoDB")


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--transactions", type=int, default=8, help="one after the other; the first does not count")
    parser.add_argument("--idle", type=float, default=60, help="seconds without any, whose requests are counted")
    parser.add_argument("--local-checkpoints", action="store_true", help="as in one process they may be")
    given = parser.parse_args()
    with rig.Rig(given) as running, bucket(running.place) as made:
        os.environ |= {**made.environment, "COMMITLAKE_SPARK_ARGS": made.spark_args}
        places: dict[str, Any] = {name: f"{made.address}/{name}" for name in ("warehouse", "checkpoints")}
        if given.local_checkpoints:
            places["checkpoints"] = running.place / "checkpoints"
        coordinator = running.coordinator("--master", "local[2]", **places)
        ready = coordinator.ready() - coordinator.begun
        with Lake(running.servers, rig.PREFIX, running.place / "lake", **places, **_QUEUES) as lake:
            spans = [one(lake, number) for number in range(given.transactions)][1:]
            time.sleep(2 * _SETTLED_S)
            idle = time.time()
            time.sleep(given.idle)
        asked = requests(running.place / "moto.log")
        took = [end - begin for begin, end in spans]
        figures = {
            "coordinator": {"ready_s": ready, "visible_s": median(took), "least_s": min(took), "most_s": max(took)},
            "requests of a transaction": {
                kind: median(count(asked, kind, begin, end + _SETTLED_S) for begin, end in spans) for kind in _KINDS
            },
            "requests a second, idle": {
                kind: count(asked, kind, idle, idle + given.idle) / given.idle for kind in _KINDS
            },
        }
    rig.report("s3", given, figures)


def one(lake: Lake, number: int) -> tuple[float, float]:
    """When the op of a transaction was in Kafka, and when its row was visible, s since epoch."""
    half = lake.half(f"t{number}")
    lake.op("COMMIT", f"t{number}", half)
    begin = time.time()
    wait_for(lambda: tables.count(str(lake.tables), "topics/orders") > number, _WAIT_S)
    end = time.time()
    time.sleep(_SETTLED_S)  # what a round writes after its rows
    return begin, end


def requests(log: Path) -> list[tuple[float, str]]:
    """Time and kind of each request of the coordinator; those of this process are deltalake's."""
    lines = [line.strip("\0").split() for line in log.read_text(errors="replace").splitlines()]
    return [
        (float(line[0]), _kind(line[2], line[3])) for line in lines if len(line) > 4 and "object_store" not in line[1]
    ]


def _kind(method: str, what: str) -> str:
    if what.startswith("DynamoDB"):
        return "DynamoDB"
    if "list-type=" in what:
        return "S3 lists"
    return "S3 reads" if method in ("GET", "HEAD") else "S3 writes"


def count(asked: list[tuple[float, str]], kind: str, begin: float, end: float) -> int:
    """How many requests of a kind came in a time."""
    return sum(1 for at, each in asked if each == kind and begin <= at < end)


if __name__ == "__main__":
    main()
