"""Routes of topics: a client reaches every topic at the address by which it calls."""

from __future__ import annotations

from commitlake.clients.gateway.messages import topic_name
from commitlake.clients.gateway.stubs import Proto, definitions, ok, services
from commitlake.errors import GatewayRefusal
from commitlake.protocol import topic_names
from commitlake.protocol.wire import Settings

_KINDS = (definitions.NORMAL, definitions.FIFO, definitions.DELAY, definitions.TRANSACTION)
_MOST_ENDPOINTS = 8 * 1024


def route(request: Proto, limits: Settings) -> Proto:
    """The queues of a topic, one for each Kafka partition that takes its messages.

    Raises:
        GatewayRefusal: `ILLEGAL_ACCESS_POINT`, the request does not name the address by which the client calls.
        RecordError: `ILLEGAL_TOPIC` or `TOPIC_NOT_ALLOWED`.
    """
    broker = _broker(request)
    check_topic(topic_name(request.topic), limits)
    queues = [
        definitions.MessageQueue(
            topic=request.topic,
            id=number,
            permission=definitions.READ_WRITE,
            broker=broker,
            accept_message_types=_KINDS,
        )
        for number in range(limits.queues)
    ]
    return services.QueryRouteResponse(status=ok(), message_queues=queues)


def assignment(request: Proto, limits: Settings) -> Proto:
    """The queue from which a push consumer receives: one stands for all queues, as in RocketMQ's proxy.

    Raises:
        GatewayRefusal: `ILLEGAL_ACCESS_POINT`, the request does not name the address by which the client calls.
        RecordError: `ILLEGAL_TOPIC` or `TOPIC_NOT_ALLOWED`.
    """
    check_topic(topic_name(request.topic), limits)
    queue = definitions.MessageQueue(
        topic=request.topic, id=-1, permission=definitions.READ_WRITE, broker=_broker(request)
    )
    return services.QueryAssignmentResponse(status=ok(), assignments=[definitions.Assignment(message_queue=queue)])


def _broker(request: Proto) -> Proto:
    if not request.endpoints.addresses:
        msg = "the request names no endpoints; RocketMQ 5's clients send the address that they were given"
        raise GatewayRefusal(msg, "ILLEGAL_ACCESS_POINT")
    if request.endpoints.ByteSize() > _MOST_ENDPOINTS:  # each queue of the answer repeats them
        msg = f"the endpoints have {request.endpoints.ByteSize()} bytes; a client may name {_MOST_ENDPOINTS}"
        raise GatewayRefusal(msg, "ILLEGAL_ACCESS_POINT")
    return definitions.Broker(name="commitlake", id=0, endpoints=request.endpoints)


def check_topic(topic: str, limits: Settings) -> None:
    """Raise RecordError with `ILLEGAL_TOPIC` or `TOPIC_NOT_ALLOWED` when the topic may not exist."""
    topic_names.check_name(topic)
    topic_names.check_admitted(topic, limits.topics_allowed, limits.topics, limits.topics_max)
