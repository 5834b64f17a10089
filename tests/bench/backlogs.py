"""What waits behind an outage lands with the memory that a coordinator has by default, however large its messages are.

    .venv/bin/python -m tests.bench.backlogs

Committed transactions of 1 kB, 40 kB and 4 MB, each from a cold start with `--available-now`. No two bodies are equal,
and none by itself gets smaller when compressed. CPU and memory are those of the whole process tree. Needs the extra
`confluent`: the load, which computes checksums of many records at once, takes 2.5 s for one of 4 MB.
"""

from __future__ import annotations

import argparse
import os

from tests.bench import rig
from tests.bench.clients import AtOnce
from tests.bench.observer import TableLog

from commitlake import Message, TransactionMQProducer, config
from commitlake.kafka.topics import publish_settings

_BACKLOGS = ((2_000_000, 1_000), (40_000, 40_000), (1_000, 4_000_000))
_LIMIT_S = 7_200
_LARGE = 1_000_000


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
    """The costs of one."""
    with rig.Rig(given) as running:
        if size < _LARGE:
            running.load("--fill", count, "--bytes", size, "--commit", 1_000, "--rollback", 0).wait(_LIMIT_S)
        else:
            send(running.servers, count, size)
        coordinator = running.coordinator("--available-now")
        cost = coordinator.wait(_LIMIT_S)
        shown = TableLog(coordinator.warehouse / "topics" / "orders").rows()
    assert shown == count, f"{shown} rows of {count} committed transactions"
    return {"seconds": cost.seconds, "CPU s": cost.cpu_s, "peak MiB": cost.peak_mib}


def send(servers: str, count: int, size: int) -> None:
    """Commits transactions with large bodies, one after the other."""
    publish_settings(config.from_mapping({"kafka.bootstrap_servers": servers}), [])  # no coordinator has run yet
    with TransactionMQProducer("bench", AtOnce(), bootstrap_servers=servers, engine="confluent") as producer:
        for _ in range(count):
            producer.send_message_in_transaction(Message("orders", os.urandom(size)))


if __name__ == "__main__":
    main()
