"""The calls of RocketMQ 5's gRPC protocol. Each call gets a RocketMQ status, also when it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

import grpc

from commitlake.clients.gateway.access import Access, Caller
from commitlake.clients.gateway.checks import Checks
from commitlake.clients.gateway.consumers import Consumers
from commitlake.clients.gateway.messages import TransactionHandle, group_of, is_half, producer_message, topic_name
from commitlake.clients.gateway.producers import Producers
from commitlake.clients.gateway.receiving import consumer_settings, wait_s
from commitlake.clients.gateway.routes import assignment, route
from commitlake.clients.gateway.sessions import Session, producer_settings
from commitlake.clients.gateway.stubs import Proto, definitions, ok, servicers, services, status_of
from commitlake.clients.producer.message import Message
from commitlake.config import Config, GatewayConfig
from commitlake.errors import GatewayRefusal
from commitlake.protocol.recall_handle import decode_handle

_DECISIONS = {definitions.COMMIT: "COMMIT", definitions.ROLLBACK: "ROLLBACK"}
_MOST_MESSAGES = 1_000
"""Messages of one request."""
_NOTHING = definitions.Status(code=definitions.MESSAGE_NOT_FOUND, message="no message came in time")

Call = Callable[["MessagingService", Any, Caller], Awaitable[Any]]


def _answered(response: Callable[..., Proto]) -> Callable[[Call], Callable[..., Awaitable[Proto]]]:
    """Check who calls, and turn errors of the call into a status, which the answer of `response` holds."""

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
    """The service that clients call. A producer may change to another gateway: no state of it is kept here only.

    `fifo` has shell patterns of the consumer groups that are FIFO.
    """

    def __init__(
        self, access: Access, producers: Producers, checks: Checks, settings: Config, fifo: Sequence[str]
    ) -> None:
        self._access = access
        self._producers, self._checks, self._limits = producers, checks, settings.gateway
        self._sessions: dict[str, set[Session]] = {}
        self._fifo = fifo
        self._consumers = Consumers(settings, fifo, self._sessions.__contains__)

    def caller(self, context: Any) -> Caller:
        """The client that calls.

        Raises:
            GatewayRefusal: the client may not call, or another access key uses its client id now.
        """
        caller = self._access.caller(context.invocation_metadata())
        if any(session.caller.key != caller.key for session in self._sessions.get(caller.client, ())):
            msg = f"the client id {caller.client!r:.100} is in use under another access key; give each client its own"
            raise GatewayRefusal(msg, "FORBIDDEN")
        return caller

    @_answered(services.QueryRouteResponse)
    async def QueryRoute(self, request: Proto, caller: Caller) -> Proto:
        """Answer with the queues of a topic."""
        return route(request, self._producers.limits)

    @_answered(services.HeartbeatResponse)
    async def Heartbeat(self, request: Proto, caller: Caller) -> Proto:
        """Acknowledge a sign of life; the gateway uses the telemetry stream instead."""
        return services.HeartbeatResponse(status=ok())

    @_answered(services.NotifyClientTerminationResponse)
    async def NotifyClientTermination(self, request: Proto, caller: Caller) -> Proto:
        """Send no more checks to a client that ends, and let other clients have its messages."""
        for session in list(self._sessions.get(caller.client, ())):
            self._checks.leave(session)
        self._consumers.client_ended(caller.client)
        return services.NotifyClientTerminationResponse(status=ok())

    @_answered(services.SendMessageResponse)
    async def SendMessage(self, request: Proto, caller: Caller) -> Proto:
        """Send messages of one topic; after a half message its client is asked for the checks of its group."""
        response = await _sent(request.messages, self._producers, self._limits)
        if is_half(request.messages[0]):
            self._can_be_asked(caller.client, group_of(request.messages[0]))
        return response

    @_answered(services.EndTransactionResponse)
    async def EndTransaction(self, request: Proto, caller: Caller) -> Proto:
        """Send a decision of the application, or its answer to a check."""
        handle = TransactionHandle.parse(request.transaction_id)
        await self._producers.end(handle, _DECISIONS.get(request.resolution, "UNKNOWN"))
        self._checks.answered(handle)
        self._can_be_asked(caller.client, handle.group)
        return services.EndTransactionResponse(status=ok())

    @_answered(services.RecallMessageResponse)
    async def RecallMessage(self, request: Proto, caller: Caller) -> Proto:
        """Recall a delayed message."""
        topic = decode_handle(request.recall_handle).topic
        if topic != topic_name(request.topic):
            msg = f"the recall handle is of a message in {topic!r}, not in {topic_name(request.topic)!r:.100}"
            raise GatewayRefusal(msg, "BAD_REQUEST")
        message_id = await self._producers.recall(request.recall_handle)
        return services.RecallMessageResponse(status=ok(), message_id=message_id)

    @_answered(services.QueryAssignmentResponse)
    async def QueryAssignment(self, request: Proto, caller: Caller) -> Proto:
        """Answer with the queue from which a push consumer receives."""
        return assignment(request, self._producers.limits)

    async def ReceiveMessage(self, request: Proto, context: Any) -> AsyncIterator[Proto]:
        """Deliver messages to a consumer, which waits for the first one."""
        try:
            caller, limits = self.caller(context), self._producers.limits
            request_s = max((each.request_s for each in self._sessions.get(caller.client, ())), default=0.0)
            longest_s = wait_s(request, context.time_remaining(), request_s)
            taken = await self._consumers.receive(request, caller, limits, longest_s)
        except Exception as error:
            yield services.ReceiveMessageResponse(status=status_of(error))
            return
        unsent = taken
        try:
            yield services.ReceiveMessageResponse(status=ok() if taken else _NOTHING)
            for each in taken:
                yield services.ReceiveMessageResponse(message=each)
            if not _has_ended(context):  # the last write succeeds even if nobody reads it any more
                unsent = []
            if taken:
                delivered = services.ReceiveMessageResponse()
                delivered.delivery_timestamp.GetCurrentTime()
                yield delivered
        finally:
            self._consumers.undo(unsent)

    @_answered(services.AckMessageResponse)
    async def AckMessage(self, request: Proto, caller: Caller) -> Proto:
        """Note that messages are done."""
        return self._consumers.acknowledge(request, caller)

    @_answered(services.ChangeInvisibleDurationResponse)
    async def ChangeInvisibleDuration(self, request: Proto, caller: Caller) -> Proto:
        """Redeliver a message after another time."""
        return self._consumers.change(request, caller)

    @_answered(services.ForwardMessageToDeadLetterQueueResponse)
    async def ForwardMessageToDeadLetterQueue(self, request: Proto, caller: Caller) -> Proto:
        """Make a message a dead letter."""
        return self._consumers.give_up(request, caller)

    async def Telemetry(self, requests: AsyncIterator[Proto], context: Any) -> AsyncIterator[Proto]:
        """The stream on which a client sends its settings and gets the checks of its transactions."""
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
            if session.refusal is not None:
                await context.abort(*_ending(session.refusal))
        finally:
            reading.cancel()
            self._checks.leave(session)
            of_client.discard(session)
            if not of_client:
                self._sessions.pop(session.caller.client, None)

    async def close(self) -> None:
        """End the streams, and send no more checks."""
        for session in [session for sessions in self._sessions.values() for session in sessions]:
            self._checks.leave(session)
        await asyncio.gather(self._checks.close(), self._consumers.close())

    def _can_be_asked(self, client: str, group: str) -> None:
        for session in self._sessions.get(client, ()):
            session.has_checker = True
            self._checks.join(session, group)

    async def _read(self, requests: AsyncIterator[Proto], session: Session) -> None:
        try:
            async for command in requests:
                if command.HasField("settings"):
                    await self._settle(command.settings, session)
        finally:
            self._checks.leave(session)

    async def _settle(self, given: Proto, session: Session) -> None:
        """Answer a client's settings, or end its stream with the reason why they are refused."""
        session.request_s = given.request_timeout.ToMilliseconds() / 1_000
        try:
            session.tell(await self._settled(given, session))
        except Exception as error:
            session.refusal = status_of(error)
            session.end()

    async def _settled(self, given: Proto, session: Session) -> Proto:
        if given.HasField("subscription"):
            return await asyncio.to_thread(consumer_settings, given, self._fifo)
        if not given.HasField("publishing"):
            msg = "the settings are neither of a producer nor of a consumer; RocketMQ 5's clients send one of both"
            raise GatewayRefusal(msg, "UNRECOGNIZED_CLIENT_TYPE")
        answer = producer_settings(given, self._producers.limits)
        for topic in session.set_topics(given.publishing.topics):
            self._checks.join(session, topic)
        return answer


def _ending(refusal: Proto) -> tuple[grpc.StatusCode, str]:
    """How a stream ends whose settings were refused, as in RocketMQ's proxy. The text goes into a header."""
    is_ours = refusal.code == definitions.INTERNAL_SERVER_ERROR
    code = grpc.StatusCode.INTERNAL if is_ours else grpc.StatusCode.INVALID_ARGUMENT
    return code, f"{definitions.Code.Name(refusal.code)}: {refusal.message:.500}"


def _has_ended(context: Any) -> bool:
    """Whether the client has cancelled the call, or its deadline has passed."""
    left_s = context.time_remaining()
    return bool(context.cancelled()) or (left_s is not None and left_s <= 0)


async def _sent(given: Sequence[Proto], producers: Producers, limits: GatewayConfig) -> Proto:
    """Send messages, and return the answer once Kafka has acknowledged all of them.

    Raises:
        GatewayRefusal: the gateway does not accept such messages.
        ProducerError: Kafka does not have the messages, or may not have them.
    """
    if not given:
        msg = "the request has no message; send at least one"
        raise GatewayRefusal(msg, "BAD_REQUEST")
    if len(given) > _MOST_MESSAGES:
        msg = f"the request has {len(given)} messages; send at most {_MOST_MESSAGES} together"
        raise GatewayRefusal(msg, "PAYLOAD_TOO_LARGE")
    groups = {group_of(message) for message in given}
    if len(given) > 1 and (len(groups) > 1 or any(map(is_half, given))):
        msg = "messages that are sent together need one producer group, and none may be one of a transaction"
        raise GatewayRefusal(msg, "MESSAGE_CORRUPTED")
    messages = _messages(given, producers.limits.max_message_size, limits)
    call = _send_half if is_half(given[0]) else _send_all
    return services.SendMessageResponse(status=ok(), entries=await call(groups.pop(), messages, producers))


def _messages(given: Sequence[Proto], most: int, limits: GatewayConfig) -> list[Message]:
    """The messages. Their bodies have at most `most` bytes together; each is unpacked only as far as room is left."""
    messages: list[Message] = []
    left = most
    for each in given:
        messages.append(producer_message(each, left, limits))
        left -= len(messages[-1].body)
        if left < 0:
            msg = f"the bodies have more than max_message_size = {most} bytes together; send fewer, or shorten them"
            raise GatewayRefusal(msg, "MESSAGE_BODY_TOO_LARGE")
    return messages


async def _send_all(group: str, messages: Sequence[Message], producers: Producers) -> list[Proto]:
    result = await producers.send(group, messages)
    return [
        services.SendResultEntry(
            status=ok(),
            message_id=message.msg_id,
            transaction_id=message.msg_id,  # as RocketMQ has it
            offset=result.queue_offset,
            recall_handle=result.recall_handle,
        )
        for message in messages
    ]


async def _send_half(group: str, messages: Sequence[Message], producers: Producers) -> list[Proto]:
    half = await producers.send_half(group, messages[0])
    record, at = half.record, half.at
    handle = TransactionHandle(transaction_id=record.transaction_id, group=group, half_messages=(at,))
    entry = services.SendResultEntry(
        status=ok(), message_id=record.msg_id, transaction_id=str(handle), offset=at.offset
    )
    return [entry]
