"""Transactions a second through one gateway and through two, and what each call costs.

    .venv/bin/python -m tests.bench.gateway --seconds 10

There is a broker and no coordinator. A transaction is RocketMQ's `SendMessage` of a half message and then its
`EndTransaction`, each awaited. Callers share one gRPC channel to each gateway. The calls are made from RocketMQ's own
message definitions by a process that does nothing else, so the client costs as little as Python lets it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack

import grpc.aio
import numpy as np
from tests.bench import rig
from tests.support.gateway import gateway

from commitlake import config
from commitlake.clients.gateway.access import CLIENT_ID
from commitlake.clients.gateway.stubs import Proto, definitions, servicers, services
from commitlake.clients.producer.link import ENGINES
from commitlake.kafka.topics import publish_settings

BODY = b"." * 256
TOPIC = definitions.Resource(name="orders")
CALLERS = (1, 8, 64)
_METADATA = ((CLIENT_ID, "bench"),)
_WARM_S = 3.0


def main() -> None:
    """Measures and prints; the first seconds of each are not counted."""
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="what the gateways send with")
    given = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with rig.Rig(given) as running, ExitStack() as stack:
        publish_settings(config.from_mapping({"kafka.bootstrap_servers": running.servers}), [])
        started = [gateway(running.servers, rig.PREFIX, f"--engine={given.engine}") for _ in range(2)]
        ports = [stack.enter_context(each).port for each in started]
        for many in (1, 2):
            for callers in (each for each in CALLERS if each >= many):
                found = asyncio.run(measure(ports[:many], callers, given.seconds))
                figures[f"gateways: {many}, callers: {callers}"] = found
    rig.report("gateway", given, figures)


async def measure(ports: Sequence[int], callers: int, seconds: float) -> dict[str, float]:
    """Transactions a second of so many callers, and the times of their calls in ms."""
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
    until = time.perf_counter() + _WARM_S + seconds
    work = [transactions(channels[number % len(channels)], until) for number in range(callers)]
    found = np.array([each for part in await asyncio.gather(*work) for each in part])
    for channel in channels:
        await channel.close()
    sent, ended = (found[(found[:, 0] >= until - seconds) & (found[:, 0] < until), 1:] * 1_000).T
    return {
        "transactions/s": len(sent) / seconds,
        "send p50 ms": float(np.median(sent)),
        "send p99 ms": float(np.quantile(sent, 0.99)),
        "end p50 ms": float(np.median(ended)),
        "end p99 ms": float(np.quantile(ended, 0.99)),
    }


async def transactions(channel: grpc.aio.Channel, until: float) -> list[tuple[float, float, float]]:
    """One after the other until then; of each its end, and how long send and end took, in s."""
    stub = servicers.MessagingServiceStub(channel)
    found = []
    while (begun := time.perf_counter()) < until:
        sent = _accepted(await stub.SendMessage(half_message(), metadata=_METADATA)).entries[0]
        middle = time.perf_counter()
        _accepted(await stub.EndTransaction(commit(sent), metadata=_METADATA))
        ended = time.perf_counter()
        found.append((ended, middle - begun, ended - middle))
    return found


def half_message() -> Proto:
    """One of 256 B, with an id of its own."""
    own = definitions.SystemProperties(
        message_id=uuid.uuid4().hex, message_type=definitions.TRANSACTION, body_encoding=definitions.IDENTITY
    )
    own.born_timestamp.GetCurrentTime()
    return services.SendMessageRequest(messages=[definitions.Message(topic=TOPIC, system_properties=own, body=BODY)])


def commit(sent: Proto) -> Proto:
    """The decision on what was sent."""
    return services.EndTransactionRequest(
        topic=TOPIC,
        message_id=sent.message_id,
        transaction_id=sent.transaction_id,
        resolution=definitions.COMMIT,
        source=definitions.SOURCE_CLIENT,
    )


def _accepted(response: Proto) -> Proto:
    assert response.status.code == definitions.OK, response.status
    return response


if __name__ == "__main__":
    main()
