"""A gateway over a Kafka in memory, called by a real gRPC channel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from commitlake.clients.gateway.server import Entrance, listening
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import servicers
from commitlake.clients.gateway.stubs import services as s
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import MemoryEngine, MemoryLink

CLIENT = (("x-mq-client-id", "client-1"),)
Work = Callable[[Any], Awaitable[Any]]


class Kafka:
    """A coordinator in memory, and the connection that a gateway has to its Kafka."""

    def __init__(self, **conf: object) -> None:
        self.coordinator = InMemoryCoordinator({key.replace("__", "."): value for key, value in conf.items()})
        kafka = self.coordinator.config.kafka
        self.engine = MemoryEngine(kafka.topic_prefix, kafka.queues, self.coordinator.append)
        self.link = MemoryLink(kafka, self.engine, lambda: self.coordinator.settings)
        self.link.start(0)

    def serve(self, work: Work, **entrance: Any) -> Any:
        """What `work` returns of a stub of a gateway."""

        async def served() -> Any:
            async with self.stub(**entrance) as stub:
                return await work(stub)

        return asyncio.run(asyncio.wait_for(served(), 30))

    @asynccontextmanager
    async def stub(self, **entrance: Any) -> AsyncIterator[Any]:
        async with (
            listening(self.link, self.coordinator.config, Entrance(listen="127.0.0.1:0", **entrance)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield servicers.MessagingServiceStub(channel)

    def send(self, *messages: Any, metadata: Any = CLIENT, **entrance: Any) -> Any:
        request = s.SendMessageRequest(messages=messages)
        return self.serve(lambda stub: stub.SendMessage(request, metadata=metadata), **entrance)


def message(topic: str = "orders", body: bytes = b"body", kind: int = d.NORMAL, **own: Any) -> Any:
    properties = own.pop("properties", {})
    own = {"message_id": "01AB", "message_type": kind, **own}
    resource = d.Resource(name=topic, resource_namespace=own.pop("namespace", ""))
    return d.Message(topic=resource, body=body, user_properties=properties, system_properties=own)


def code(response: Any) -> str:
    return str(d.Code.Name(response.status.code))
