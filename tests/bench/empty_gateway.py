"""A server that answers RocketMQ's producers at once: the most that gRPC in Python leaves to a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from commitlake import config
from commitlake.clients.gateway.routes import route
from commitlake.clients.gateway.sessions import producer_settings
from commitlake.clients.gateway.stubs import Proto, ok, servicers, services

LIMITS = config.from_mapping({"kafka.bootstrap_servers": "127.0.0.1:9"}).limits([])


class Empty(servicers.MessagingServiceServicer):  # type: ignore[misc, name-defined]
    """Keeps nothing."""

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


async def main() -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server()
    servicers.add_MessagingServiceServicer_to_server(Empty(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"READY on port {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
