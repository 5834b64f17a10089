"""Transactions a second of RocketMQ's Java client through a gateway, beside a server that does no work.

    .venv/bin/python -m tests.bench.gateway

There is a broker and no coordinator. A transaction is the send of a half message of 256 B, and its commit, each
awaited. The client, the broker and the gateway share the machine. It needs Maven, which fetches the client.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.bench import rig
from tests.support.gateway import gateway

from commitlake import config
from commitlake.clients.producer.link import ENGINES
from commitlake.kafka.topics import publish_settings

THREADS = (1, 16, 64)
PACED = (16, 500)
"""Threads, and transactions a second of all together."""
_CLIENT = rig.ROOT / "tests" / "support" / "java"
_LOAD = rig.ROOT / "tests" / "bench" / "java" / "Transactions.java"


def main() -> None:
    """Measures and prints; the first seconds of each are not counted."""
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each")
    parser.add_argument("--engine", choices=ENGINES, default="confluent", help="what the gateway sends with")
    given = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with rig.Rig(given) as running, ExitStack() as stack:
        publish_settings(config.from_mapping({"kafka.bootstrap_servers": running.servers}), [])
        jars, empty = _jars(running.place / "jars"), running.empty_gateway()
        empty.ready()
        started = stack.enter_context(gateway(running.servers, rig.PREFIX, f"--engine={given.engine}"))
        ports = {"empty": int(empty.output.split()[-1]), "gateway": started.port}
        for threads, rate in (*((each, 0) for each in THREADS), PACED):
            for name, port in ports.items():
                pace = f", {rate}/s" if rate else ""
                figures[f"{name}, threads: {threads}{pace}"] = measure(jars, port, threads, given.seconds, rate)
    rig.report("gateway", given, figures)


def measure(jars: Path, port: int, threads: int, seconds: float, rate: float) -> dict[str, float]:
    """Transactions a second of so many threads, `rate` at most, or as many as they can; and their times in ms."""
    arguments = [f"127.0.0.1:{port}", threads, seconds, rate]
    command = ["java", f"-Duser.home={jars}", "-cp", f"{jars}/*", str(_LOAD), *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _jars(place: Path) -> Path:
    fetch = ["mvn", "-q", "-B", "-f", str(_CLIENT), "dependency:copy-dependencies", f"-DoutputDirectory={place}"]
    subprocess.run(fetch, check=True)
    return place


if __name__ == "__main__":
    main()
