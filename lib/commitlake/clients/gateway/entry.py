"""Refuses calls of those who may not call, before their body is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from commitlake.clients.gateway.access import Access
from commitlake.clients.gateway.status import status_of
from commitlake.clients.gateway.stubs import Proto, services
from commitlake.errors import GatewayRefusal


class Entry(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets calls in by their metadata alone; the others get a status of RocketMQ's, and their body stays unread.

    Args:
        access: who may call.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """What handles the call."""
        try:
            self._access.caller(call.invocation_metadata)
        except GatewayRefusal as error:
            return _refusal(call.method.rpartition("/")[2], error)
        return await continuation(call)


def _refusal(name: str, error: GatewayRefusal) -> Any:
    """Answers without a look at the request: gRPC reads one that is a stream only where it is asked for."""
    response = getattr(services, f"{name}Response", services.TelemetryCommand)

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Proto]:
        yield response(status=status_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse, response_serializer=response.SerializeToString)
