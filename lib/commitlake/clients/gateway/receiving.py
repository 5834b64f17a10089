"""Checks the requests of consumers, and converts messages into RocketMQ 5's form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from commitlake.clients.consumer.arguments import checked_group
from commitlake.clients.consumer.filters import Filter
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.runner import PAUSES
from commitlake.clients.gateway.deliveries import LONGEST_S, MOST_ATTEMPTS
from commitlake.clients.gateway.messages import sent_back, topic_name
from commitlake.clients.gateway.routes import check_topic
from commitlake.clients.gateway.stubs import Proto, definitions, ok, services
from commitlake.errors import ConsumerError, GatewayRefusal
from commitlake.protocol.durations import duration_ms
from commitlake.protocol.headers import TRANSACTION_ID
from commitlake.protocol.topic_names import is_allowed
from commitlake.protocol.wire import Settings

MOST_RECEIVED = 32
"""Messages of one call, as in RocketMQ."""
POLL_S = 20.0
"""Wait of a call that names no time."""
_LONGEST_POLL_S = 60.0
"""The longest wait of a call, so that a call whose client has silently gone does not take a place for hours."""
_MARGIN_S = 0.5
"""A call ends at least so long before its deadline, so that the client gets the answer "no message"."""
_SHARDING_KEY = "__SHARDINGKEY"
_LONGEST_TAGS, _LONGEST_CONDITION = 16 * 1_024, 4_096
"""Characters of a filter; a single tag may have as many as `gateway.max_property_size` lets it by default."""
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
        RecordError: the topic can't be used.
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


def invisible_s(duration: Proto, least_s: float = 0.0) -> float:
    """An invisible duration in seconds, at least `least_s`.

    Raises:
        GatewayRefusal: `ILLEGAL_INVISIBLE_TIME`.
    """
    seconds: float = duration.ToMilliseconds() / 1_000
    if not least_s <= seconds <= LONGEST_S:
        problem = "too small" if seconds < least_s else "too large"  # RocketMQ's words, for which its tests look
        msg = f"the invisibleTime is {problem}: {seconds} s; give {least_s:g} to {LONGEST_S:g} s"
        raise GatewayRefusal(msg, "ILLEGAL_INVISIBLE_TIME")
    return seconds


def wait_s(request: Proto, left_s: float | None, request_s: float) -> float:
    """How long a call may wait for its first message, s, as in RocketMQ's proxy.

    `left_s` is the time until its deadline, None without one. Its client adds `request_s` for an answer; half of it is
    left for the way back.
    """
    asked_s = request.long_polling_timeout.ToMilliseconds() / 1_000
    poll_s = asked_s if request.HasField("long_polling_timeout") else POLL_S
    if left_s is not None:
        poll_s = min(poll_s, left_s - max(_MARGIN_S, min(request_s, left_s) / 2))
    return max(0.0, min(poll_s, _LONGEST_POLL_S))


def consumer_settings(given: Proto, fifo: Sequence[str]) -> Proto:
    """The answer to a consumer's settings; `fifo` has shell patterns of FIFO groups.

    Not for an event loop: it takes up to a second.

    Raises:
        GatewayRefusal: the kind of consumer is not supported, or its group or a filter can't be used.
    """
    if given.client_type not in _KINDS:
        msg = "only push consumers and simple consumers are supported; use one of them"
        raise GatewayRefusal(msg, "UNSUPPORTED")
    group = group_name(given.subscription.group)
    filters = dict.fromkeys(_filter(each.expression) for each in given.subscription.subscriptions[:_MOST_SUBSCRIPTIONS])
    conditions = [each for each in filters if each[1] is not None]
    for tags, where in filters.keys() - set(conditions[_MOST_CONDITIONS:]):
        check_filter(tags, where)
    settings = definitions.Settings(client_type=given.client_type, request_timeout=given.request_timeout)
    own = settings.subscription
    own.fifo, own.receive_batch_size = is_allowed(group, fifo), MOST_RECEIVED
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


def received(message: ReceivedMessage, topic: Proto, handle: str, attempt: int, duration_s: float | None) -> Proto:
    """A message as its consumer gets it. `duration_s` is its invisible duration; None if the gateway renews it."""
    body, key = message.body, message.sharding_key
    group = None if key is None else key.decode(errors="replace")
    shown = [*message.properties.items(), (_SHARDING_KEY, group), (TRANSACTION_ID, message.transaction_id)]
    texts = {name: value for name, value in shown if value is not None}  # that of a Kafka header may be None
    own = sent_back(message.message_id, _kind(message), body, message.tags, message.keys, attempt)
    own.receipt_handle, own.queue_id, own.queue_offset = handle, message.queue_id, message.source_offset
    if group is not None:
        own.message_group = group
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
    is_sql = expression.type == definitions.SQL
    text, most = str(expression.expression), _LONGEST_CONDITION if is_sql else _LONGEST_TAGS
    if len(text) > most:
        msg = f"the filter has {len(text)} characters; it may have {most}"
        raise GatewayRefusal(msg, "ILLEGAL_FILTER_EXPRESSION")
    if is_sql:
        return None, text
    return (None if text.strip() in ("", "*") else text), None
