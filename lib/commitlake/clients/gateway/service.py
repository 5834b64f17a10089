"""The calls of RocketMQ 5's gRPC protocol. Each gets a status of RocketMQ's, also where it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any

from commitlake.clients.gateway.access import Access, Caller
from commitlake.clients.gateway.checks import Checks
from commitlake.clients.gateway.handles import TransactionHandle
from commitlake.clients.gateway.messages import group_of, is_half, topic_name
from commitlake.clients.gateway.producers import Producers
from commitlake.clients.gateway.routes import route
from commitlake.clients.gateway.sending import send
from commitlake.clients.gateway.sessions import NO_CONSUMERS, Session, settled
from commitlake.clients.gateway.status import ok, status_of
from commitlake.clients.gateway.stubs import Proto, definitions, servicers, services
from commitlake.errors import GatewayRefusal
from commitlake.protocol.recall_handle import decode_handle

_DECISIONS = {definitions.COMMIT: "COMMIT", definitions.ROLLBACK: "ROLLBACK"}

Call = Callable[["MessagingService", Any, Caller], Awaitable[Any]]


def _answered(response: Callable[..., Proto]) -> Callable[[Call], Callable[..., Awaitable[Proto]]]:
    """A call of a client that may call, whose errors become a status.

    Args:
        response: makes the answer.
    """

    def decorated(call: Call) -> Callable[..., Awaitable[Proto]]:
        @wraps(call)
        async def answer(service: MessagingService, request: Proto, context: Any) -> Proto:
            try:
                return await call(service, request, service.caller(context))
            except Exception as error:
                return response(status=status_of(error))

        return answer

    return decorated


class MessagingService(servicers.MessagingServiceServicer):  # type: ignore[misc, name-defined]
    """What producers call; it keeps nothing that another gateway would need.

    Args:
        access: who may call.
        producers: send to Kafka.
        checks: ask the producers.
    """

    def __init__(self, access: Access, producers: Producers, checks: Checks) -> None:
        self._access = access
        self._producers, self._checks = producers, checks
        self._sessions: dict[str, set[Session]] = {}

    def caller(self, context: Any) -> Caller:
        """Who calls.

        Raises:
            GatewayRefusal: it may not, or not under this client id.
        """
        caller = self._access.caller(context.invocation_metadata())
        if any(session.caller.key != caller.key for session in self._sessions.get(caller.client, ())):
            msg = f"the client id {caller.client!r:.100} is in use under another access key; give each client its own"
            raise GatewayRefusal(msg, "FORBIDDEN")
        return caller

    @_answered(services.QueryRouteResponse)
    async def QueryRoute(self, request: Proto, caller: Caller) -> Proto:
        """Where a topic is."""
        return route(request, self._producers.limits)

    @_answered(services.HeartbeatResponse)
    async def Heartbeat(self, request: Proto, caller: Caller) -> Proto:
        """A sign of life; the telemetry stream says the same."""
        return services.HeartbeatResponse(status=ok())

    @_answered(services.NotifyClientTerminationResponse)
    async def NotifyClientTermination(self, request: Proto, caller: Caller) -> Proto:
        """A client that ends is asked no more."""
        for session in list(self._sessions.get(caller.client, ())):
            self._checks.leave(session)
        return services.NotifyClientTerminationResponse(status=ok())

    @_answered(services.SendMessageResponse)
    async def SendMessage(self, request: Proto, caller: Caller) -> Proto:
        """Messages of one topic; a half message also lets its client be asked for its group."""
        response = await send(request.messages, self._producers)
        if is_half(request.messages[0]):
            self._can_be_asked(caller.client, group_of(request.messages[0]))
        return response

    @_answered(services.EndTransactionResponse)
    async def EndTransaction(self, request: Proto, caller: Caller) -> Proto:
        """A decision of the application, or the answer to a check."""
        handle = TransactionHandle.parse(request.transaction_id)
        await self._producers.end(handle, _DECISIONS.get(request.resolution, "UNKNOWN"))
        self._checks.answered(handle)
        self._can_be_asked(caller.client, handle.group)
        return services.EndTransactionResponse(status=ok())

    @_answered(services.RecallMessageResponse)
    async def RecallMessage(self, request: Proto, caller: Caller) -> Proto:
        """Takes a delayed message back."""
        topic = decode_handle(request.recall_handle).topic
        if topic != topic_name(request.topic):
            msg = f"the recall handle is of a message in {topic!r}, not in {topic_name(request.topic)!r:.100}"
            raise GatewayRefusal(msg, "BAD_REQUEST")
        message_id = await self._producers.recall(request.recall_handle)
        return services.RecallMessageResponse(status=ok(), message_id=message_id)

    async def Telemetry(self, requests: AsyncIterator[Proto], context: Any) -> AsyncIterator[Proto]:
        """The stream on which a client tells its settings, and is asked for its transactions."""
        try:
            session = Session(self.caller(context))
        except GatewayRefusal as error:
            yield services.TelemetryCommand(status=status_of(error))
            return
        of_client = self._sessions.setdefault(session.caller.client, set())
        of_client.add(session)
        reading = asyncio.create_task(self._read(requests, session))
        try:
            async for command in session.commands():
                yield command
        finally:
            reading.cancel()
            self._checks.leave(session)
            of_client.discard(session)
            if not of_client:
                self._sessions.pop(session.caller.client, None)

    async def close(self) -> None:
        """End the streams, and ask nobody any more."""
        for session in [session for sessions in self._sessions.values() for session in sessions]:
            self._checks.leave(session)
        await self._checks.close()

    def _can_be_asked(self, client: str, group: str) -> None:
        for session in self._sessions.get(client, ()):
            session.has_checker = True
            self._checks.join(session, group)

    async def _read(self, requests: AsyncIterator[Proto], session: Session) -> None:
        try:
            async for command in requests:
                if command.HasField("settings"):
                    session.tell(self._settled(command.settings, session))
        finally:
            self._checks.leave(session)

    def _settled(self, given: Proto, session: Session) -> Proto:
        try:
            answer = settled(given, self._producers.limits)
            topics = session.set_topics(given.publishing.topics)
        except Exception as error:
            return services.TelemetryCommand(status=status_of(error))
        for topic in topics:
            self._checks.join(session, topic)
        return answer


def _refused(response: Callable[..., Proto]) -> Callable[..., Awaitable[Proto]]:
    @_answered(response)
    async def refuse(service: MessagingService, request: Proto, caller: Caller) -> Proto:
        raise GatewayRefusal(NO_CONSUMERS, "UNSUPPORTED")

    return refuse


def _refused_stream(response: Callable[..., Proto]) -> Callable[..., AsyncIterator[Proto]]:
    refuse = _refused(response)

    async def refuse_all(service: MessagingService, request: Proto, context: Any) -> AsyncIterator[Proto]:
        yield await refuse(service, request, context)

    return refuse_all


for _name in (
    "QueryAssignment",
    "AckMessage",
    "ForwardMessageToDeadLetterQueue",
    "ChangeInvisibleDuration",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "SyncLiteSubscription",
):
    setattr(MessagingService, _name, _refused(getattr(services, f"{_name}Response")))
for _name in ("ReceiveMessage", "PullMessage"):
    setattr(MessagingService, _name, _refused_stream(getattr(services, f"{_name}Response")))
