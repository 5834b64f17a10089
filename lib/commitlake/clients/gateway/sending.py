"""`SendMessage`: one message of any kind, or several of one topic as one batch."""

from __future__ import annotations

from collections.abc import Sequence

from commitlake.clients.gateway.handles import TransactionHandle
from commitlake.clients.gateway.messages import group_of, is_half, producer_message
from commitlake.clients.gateway.producers import Producers
from commitlake.clients.gateway.status import ok
from commitlake.clients.gateway.stubs import Proto, services
from commitlake.clients.producer.message import Message
from commitlake.errors import GatewayRefusal

MOST_MESSAGES = 1_000
"""Messages of one request."""


async def send(given: Sequence[Proto], producers: Producers) -> Proto:
    """Send messages, and return the answer once Kafka has acknowledged all of them.

    Raises:
        GatewayRefusal: the gateway does not accept such messages.
        MQClientException: Kafka does not have the messages, or may not have them.
    """
    if not given:
        msg = "the request has no message; send at least one"
        raise GatewayRefusal(msg, "BAD_REQUEST")
    if len(given) > MOST_MESSAGES:
        msg = f"the request has {len(given)} messages; send at most {MOST_MESSAGES} together"
        raise GatewayRefusal(msg, "PAYLOAD_TOO_LARGE")
    groups = {group_of(message) for message in given}
    if len(given) > 1 and (len(groups) > 1 or any(map(is_half, given))):
        msg = "messages that are sent together need one producer group, and none may be one of a transaction"
        raise GatewayRefusal(msg, "MESSAGE_CORRUPTED")
    messages = _messages(given, producers.limits.max_message_size)
    call = _send_half if is_half(given[0]) else _send
    return services.SendMessageResponse(status=ok(), entries=await call(groups.pop(), messages, producers))


def _messages(given: Sequence[Proto], most: int) -> list[Message]:
    """The messages. Their bodies have at most `most` bytes together; each is unpacked only as far as room is left."""
    messages: list[Message] = []
    left = most
    for each in given:
        messages.append(producer_message(each, left))
        left -= len(messages[-1].body)
        if left < 0:
            msg = f"the bodies have more than max_message_size = {most} bytes together; send fewer, or shorten them"
            raise GatewayRefusal(msg, "MESSAGE_BODY_TOO_LARGE")
    return messages


async def _send(group: str, messages: Sequence[Message], producers: Producers) -> list[Proto]:
    result = await producers.send(group, messages)
    return [
        services.SendResultEntry(
            status=ok(), message_id=message.msg_id, offset=result.queue_offset, recall_handle=result.recall_handle
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
