"""The other kinds of messages: a batch, and a delayed message."""

from __future__ import annotations

from collections import Counter

from commitlake.clients.producer import DefaultMQProducer, Message
from commitlake.config import KafkaConfig

PRICES, REMINDERS = "prices", "reminders"
DELAY_S = 10


def send(kafka: KafkaConfig) -> dict[str, Counter[str]]:
    """Send three prices as one batch, and a reminder that becomes visible after `DELAY_S`.

    Returns:
        The ids of the messages, by topic.
    """
    producer = DefaultMQProducer(
        "marketing",
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=kafka.topic_prefix,
        send_msg_timeout=15_000,
        start_timeout=60_000,
    )
    with producer:
        prices = [Message(PRICES, f"{item}: {price}") for item, price in (("tea", 4), ("cake", 6), ("jam", 3))]
        batch = producer.send(prices)
        reminder = producer.send(Message(REMINDERS, "Tell us how you like it", delay_seconds=DELAY_S))
    return {PRICES: Counter(batch.msg_id.split(",")), REMINDERS: Counter([reminder.msg_id])}
