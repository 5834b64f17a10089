"""Refuses calls of unauthorized clients before the body is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from commitlake.clients.gateway.access import Access
from commitlake.clients.gateway.status import status_of
from commitlake.clients.gateway.stubs import Proto, services
from commitlake.errors import GatewayRefusal


class Entry(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Admits calls by their metadata alone. A refused call gets a RocketMQ status, and its body stays unread.

    Args:
        access: who may call.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """The handler of the call: the service's, or one that answers with a refusal."""
        try:
            self._access.caller(call.invocation_metadata)
        except GatewayRefusal as error:
            return _refusal(call.method.rpartition("/")[2], error)
        return await continuation(call)


def _refusal(name: str, error: GatewayRefusal) -> Any:
    """Answers without reading the request: gRPC reads a streamed request only when the handler asks for it."""
    response = getattr(services, f"{name}Response", services.TelemetryCommand)

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Proto]:
        yield response(status=status_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse, response_serializer=response.SerializeToString)
