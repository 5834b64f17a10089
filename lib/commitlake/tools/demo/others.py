"""The other kinds of messages: a batch, and a delayed message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from commitlake import DefaultMQProducer, Message

PRICES, REMINDERS = "prices", "reminders"
DELAY_S = 10


def send(kafka: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Send three prices as one batch, and a reminder that becomes visible after `DELAY_S`.

    Args:
        kafka: arguments of a producer.

    Returns:
        The ids of the messages, by topic.
    """
    with DefaultMQProducer("marketing", **kafka) as producer:
        prices = [Message(PRICES, f"{item}: {price}") for item, price in (("tea", 4), ("cake", 6), ("jam", 3))]
        batch = producer.send(prices)
        reminder = producer.send(Message(REMINDERS, "Tell us how you like it", delay_seconds=DELAY_S))
    return {PRICES: Counter(batch.msg_id.split(",")), REMINDERS: Counter([reminder.msg_id])}
