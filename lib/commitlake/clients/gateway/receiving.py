"""Checks the requests of consumers, and converts messages into RocketMQ 5's form."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import NamedTuple

from commitlake.clients.consumer.arguments import checked_group
from commitlake.clients.consumer.filters import Filter
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.runner import PAUSES
from commitlake.clients.gateway.deliveries import AT_ONCE_S, LONGEST_S, MOST_ATTEMPTS
from commitlake.clients.gateway.messages import topic_name
from commitlake.clients.gateway.routes import check_topic
from commitlake.clients.gateway.stubs import Proto, definitions, ok, services
from commitlake.errors import ConsumerError, GatewayRefusal
from commitlake.protocol.durations import duration_ms
from commitlake.protocol.wire import Settings

MOST_RECEIVED = 32
"""Messages of one call, as in RocketMQ."""
POLL_S = 20.0
"""Wait of a call that names no time."""
_LONGEST_POLL_S = 60.0
"""The longest wait of a call, so that a call whose client has silently gone does not take a place for hours."""
_MARGIN_S = 0.5
"""A call ends so long before its deadline, so that the client gets the answer "no message"."""
_LONGEST_FILTER = 4_096
_MOST_SUBSCRIPTIONS, _MOST_CONDITIONS = 100, 20
"""Subscriptions of one client's settings, and SQL conditions among them, that are checked at once; others on use."""
_KINDS = (definitions.PUSH_CONSUMER, definitions.SIMPLE_CONSUMER)


class Subscribed(NamedTuple):
    """A subscription, by a tag expression or an SQL condition on properties: what one reader reads."""

    group: str
    topic: str
    tags: str | None
    where: str | None


def subscribed(request: Proto, limits: Settings) -> Subscribed:
    """The subscription of a call of `ReceiveMessage`.

    Raises:
        GatewayRefusal: the group or the filter can't be used.
        ProducerError: the topic can't be used.
    """
    topic = topic_name(request.message_queue.topic)
    check_topic(topic, limits)
    return Subscribed(group_name(request.group), topic, *_filter(request.filter_expression))


def group_name(resource: Proto) -> str:
    """The name of a consumer group, after its namespace and `%` if it has a namespace.

    Raises:
        GatewayRefusal: `ILLEGAL_CONSUMER_GROUP`.
    """
    try:
        return checked_group(topic_name(resource))
    except ConsumerError as error:
        raise GatewayRefusal(str(error), "ILLEGAL_CONSUMER_GROUP") from error


def invisible_s(duration: Proto, least_s: float = AT_ONCE_S) -> float:
    """An invisible duration in seconds. A change may set it to 0 (`least_s`), as in RocketMQ's proxy.

    Raises:
        GatewayRefusal: `ILLEGAL_INVISIBLE_TIME`.
    """
    seconds: float = duration.ToMilliseconds() / 1_000
    if not least_s <= seconds <= LONGEST_S:
        msg = f"the invisible duration is {seconds} s; it must be between {least_s} and {LONGEST_S:.0f}"
        raise GatewayRefusal(msg, "ILLEGAL_INVISIBLE_TIME")
    return seconds


def wait_s(request: Proto, left_s: float | None) -> float:
    """How long a call may wait for its first message, s; `left_s` is the time until its deadline, None without one."""
    asked_s = request.long_polling_timeout.ToMilliseconds() / 1_000
    poll_s = asked_s if request.HasField("long_polling_timeout") else POLL_S
    return max(0.0, min(poll_s, _LONGEST_POLL_S, math.inf if left_s is None else left_s - _MARGIN_S))


def consumer_settings(given: Proto) -> Proto:
    """The answer to a consumer's settings. Not for an event loop: it takes up to a second.

    Raises:
        GatewayRefusal: the kind of consumer is not supported, or its group or a filter can't be used.
    """
    if given.client_type not in _KINDS:
        msg = "only push consumers and simple consumers are supported; use one of them"
        raise GatewayRefusal(msg, "UNSUPPORTED")
    group_name(given.subscription.group)
    filters = dict.fromkeys(_filter(each.expression) for each in given.subscription.subscriptions[:_MOST_SUBSCRIPTIONS])
    conditions = [each for each in filters if each[1] is not None]
    for tags, where in filters.keys() - set(conditions[_MOST_CONDITIONS:]):
        check_filter(tags, where)
    settings = definitions.Settings(client_type=given.client_type, request_timeout=given.request_timeout)
    own = settings.subscription
    own.fifo, own.receive_batch_size = False, MOST_RECEIVED
    own.long_polling_timeout.FromMilliseconds(int(POLL_S * 1_000))
    settings.backoff_policy.max_attempts = MOST_ATTEMPTS
    for pause in PAUSES:
        settings.backoff_policy.customized_backoff.next.add().FromMilliseconds(duration_ms(pause) or 0)
    settings.metric.on = False
    return services.TelemetryCommand(status=ok(), settings=settings)


def check_filter(tags: str | None, where: str | None) -> None:
    """Raise GatewayRefusal `ILLEGAL_FILTER_EXPRESSION` if a filter can't be used. A new condition takes some 50 ms."""
    problem = _problem(tags, where)
    if problem is not None:
        msg = f"the filter {problem}"
        raise GatewayRefusal(msg, "ILLEGAL_FILTER_EXPRESSION")


@lru_cache(1_000)
def _problem(tags: str | None, where: str | None) -> str | None:
    """The reason why a filter can't be used; None if it can. Cached, since clients repeat their filters."""
    try:
        Filter(tags, where)
    except ConsumerError as error:
        return str(error).removeprefix("where: ")
    return None


def received(message: ReceivedMessage, topic: Proto, handle: str, duration_s: float | None) -> Proto:
    """A message as its consumer gets it. `duration_s` is its invisible duration; None if the gateway renews it."""
    body, key = message.body or b"", message.sharding_key
    texts = {name: value for name, value in message.properties.items() if value is not None}  # a Kafka header may be
    own = definitions.SystemProperties(
        message_id=message.message_id,
        message_type=_kind(message),
        body_encoding=definitions.IDENTITY,
        body_digest=definitions.Digest(type=definitions.SHA1, checksum=hashlib.sha1(body).hexdigest().upper()),
        tag=message.tags,
        keys=(message.keys or "").split(),
        message_group=None if key is None else key.decode(errors="replace"),
        delivery_attempt=message.attempt,
        receipt_handle=handle,
        queue_id=message.queue_id,
        queue_offset=message.source_offset,
    )
    own.born_timestamp.FromDatetime(message.born_at or message.stored_at)
    own.store_timestamp.FromDatetime(message.stored_at)
    if message.due_at is not None:
        own.delivery_timestamp.FromDatetime(message.due_at)
    if duration_s is not None:
        own.invisible_duration.FromMilliseconds(int(duration_s * 1_000))
    return definitions.Message(topic=topic, user_properties=texts, system_properties=own, body=body)


def _kind(message: ReceivedMessage) -> int:
    if message.transaction_id is not None:
        return int(definitions.TRANSACTION)
    if message.due_at is not None:
        return int(definitions.DELAY)
    return int(definitions.NORMAL if message.sharding_key is None else definitions.FIFO)


def _filter(expression: Proto) -> tuple[str | None, str | None]:
    """The tags and the SQL condition of a filter expression; None for each that it does not have."""
    text = str(expression.expression)
    if len(text) > _LONGEST_FILTER:
        msg = f"the filter has {len(text)} characters; it may have {_LONGEST_FILTER}"
        raise GatewayRefusal(msg, "ILLEGAL_FILTER_EXPRESSION")
    if expression.type == definitions.SQL:
        return None, text
    return (None if text.strip() in ("", "*") else text), None
