"""Transactions a second of RocketMQ's Java client through a gateway, beside a server that does no work.

    .venv/bin/python -m tests.bench.gateway

There is a broker and no coordinator. A transaction is the send of a half message of 256 B, and its commit, each
awaited. The client, the broker and the gateway share the machine. It needs Maven, which fetches the client.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
from tests.bench import rig
from tests.support.gateway import gateway

from commitlake import config
from commitlake.clients.gateway.routes import route
from commitlake.clients.gateway.sessions import producer_settings
from commitlake.clients.gateway.stubs import Proto, ok, servicers, services
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


LIMITS = config.from_mapping({"kafka.bootstrap_servers": "127.0.0.1:9"}).limits([])


class Empty(servicers.MessagingServiceServicer):  # type: ignore[misc, name-defined]
    """Answers at once and keeps nothing: the most that gRPC in Python leaves to a gateway."""

    async def QueryRoute(self, request: Proto, context: Any) -> Proto:
        return route(request, LIMITS)

    async def Heartbeat(self, request: Proto, context: Any) -> Proto:
        return services.HeartbeatResponse(status=ok())

    async def SendMessage(self, request: Proto, context: Any) -> Proto:
        message_id = request.messages[0].system_properties.message_id  # the client reads no others
        entry = services.SendResultEntry(status=ok(), message_id=message_id, transaction_id="any")
        return services.SendMessageResponse(status=ok(), entries=[entry])

    async def EndTransaction(self, request: Proto, context: Any) -> Proto:
        return services.EndTransactionResponse(status=ok())

    async def Telemetry(self, requests: AsyncIterator[Proto], context: Any) -> AsyncIterator[Proto]:
        async for command in requests:
            if command.HasField("settings"):
                yield producer_settings(command.settings, LIMITS)


async def serve_empty() -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server()
    servicers.add_MessagingServiceServicer_to_server(Empty(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"READY on port {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve_empty()) if sys.argv[1:] == ["empty"] else main()
