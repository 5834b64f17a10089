"""RocketMQ's visibility test: of five kinds of transactions exactly the committed ones are visible, each once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import wait_for
from tests.support.running import coordinator
from tests.support.tables import rows

from commitlake.clients.producer import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionMQProducer,
)
from commitlake.kafka.embedded import EmbeddedBroker

MESSAGES = 120
COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOW
AT_ONCE = [COMMIT, ROLLBACK, UNKNOWN, UNKNOWN, UNKNOWN]
IN_CHECK = [None, None, COMMIT, ROLLBACK, UNKNOWN]
ENDS = [
    ("COMMITTED", "DIRECT"),
    ("ROLLED_BACK", "DIRECT"),
    ("COMMITTED", "CHECK"),
    ("ROLLED_BACK", "CHECK"),
    ("DISCARDED", "CHECK_MAX"),
]


class Mix(TransactionListener):
    """Answers by the number that is the message's body."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return AT_ONCE[int(message.body) % 5]

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        return IN_CHECK[int(message.body) % 5]


@pytest.mark.soak
def test_exactly_the_committed_messages_are_visible(broker: EmbeddedBroker, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "kafka__bootstrap_servers": broker.bootstrap_servers,
        "kafka__topic_prefix": "mix.",
        "kafka__queues": 2,
        "transaction__timeout": "1s",
        "transaction__check_interval": "8s",
        "transaction__check_max": 2,
    }
    with coordinator(tmp_path, **settings) as running:
        running.ready()
        producer = TransactionMQProducer(
            "mix", Mix(), bootstrap_servers=broker.bootstrap_servers, topic_prefix="mix.", send_msg_timeout=20_000
        )
        producer.start()
        try:
            for number in range(MESSAGES):
                producer.send_message_in_transaction(Message("mixed", str(number)))
            wait_for(lambda: len(rows(running.warehouse, "transactions")) >= MESSAGES, why=lambda: running.said)
        finally:
            producer.shutdown()
        running.process.terminate()
        assert running.end() == 0
    seen = Counter(int(row["body"]) for row in rows(running.warehouse, "topics/mixed"))
    assert seen == Counter(number for number in range(MESSAGES) if number % 5 in (0, 2))
    bodies = {(row["queue"], row["queue_offset"]): int(row["body"]) for row in rows(running.warehouse, "half")}
    ended = rows(running.warehouse, "transactions")
    ends = {bodies[row["queue"], row["half_offset"]]: (row["state"], row["reason"]) for row in ended}
    assert ends == {number: ENDS[number % 5] for number in range(MESSAGES)}
    assert sorted(int(row["body"]) for row in rows(running.warehouse, "discarded")) == list(range(4, MESSAGES, 5))
    rejected = Counter(row["reason"] for row in rows(running.warehouse, "rejected"))
    assert not rejected, "an answer to a check that was sent twice would be harmless, and rejected nowhere"
