"""What waits behind an outage lands with the memory that a coordinator has by default, however large its messages are.

    .venv/bin/python -m tests.bench.backlogs

Committed transactions of 1 kB, 40 kB and 4 MB, each from a cold start with `--available-now`. No two bodies are equal,
and none by itself gets smaller when compressed. CPU and memory are those of the whole process tree.
"""

from __future__ import annotations

import argparse

from tests.bench import rig
from tests.bench.observer import TableLog

_BACKLOGS = ((2_000_000, 1_000), (40_000, 40_000), (1_000, 4_000_000))
_LIMIT_S = 7_200


def main() -> None:
    """Measures and prints; fails when one is not wholly visible."""
    parser = rig.parser(__doc__)
    given = parser.parse_args()
    found = {}
    for count, size in _BACKLOGS:
        found[f"{count} of {size} B"] = measure(given, count, size)
        print(count, size, found[f"{count} of {size} B"], flush=True)
    rig.report("backlogs", given, found)


def measure(given: argparse.Namespace, count: int, size: int) -> dict[str, float]:
    with rig.Rig(given) as running:
        running.load("--fill", count, "--bytes", size, "--commit", 1_000, "--rollback", 0).wait(_LIMIT_S)
        coordinator = running.coordinator("--available-now")
        cost = coordinator.wait(_LIMIT_S)
        shown = TableLog(coordinator.warehouse / "topics" / "orders").rows()
    assert shown == count, f"{shown} rows of {count} committed transactions"
    return {"seconds": cost.seconds, "CPU s": cost.cpu_s, "peak MiB": cost.peak_mib}


if __name__ == "__main__":
    main()
