"""What a coordinator costs that has nothing to do.

.venv/bin/python -m tests.bench.idle --after 60 --seconds 60
"""

from __future__ import annotations

import time

from tests.bench import rig
from tests.bench.observer import tables


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--after", type=float, default=60, help="seconds from READY to what counts")
    parser.add_argument("--seconds", type=float, default=60, help="how long it counts")
    given = parser.parse_args()
    with rig.Rig(given) as running:
        coordinator = running.coordinator()
        coordinator.ready()
        time.sleep(given.after)
        cores = rig.Cores(coordinator=coordinator.cpu_seconds, broker=running.broker_cpu_seconds)
        begin = time.time()
        time.sleep(given.seconds)
        figures = {name: {"cores": used} for name, used in cores.figures().items()}
        commits = [commit for log in tables(coordinator.warehouse) for commit in log.read() if commit.at >= begin]
        figures["coordinator"] |= {"rss_mib": coordinator.rss_mib(), "commits": len(commits)}
    rig.report("idle", given, figures)


if __name__ == "__main__":
    main()
