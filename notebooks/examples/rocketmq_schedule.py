"""RocketMQ's example of scheduled messages: a hundred messages of delay level 3, which is ten seconds.

Each becomes visible ten seconds after it was stored, once. Needs the extra `consumer`; run it while a
coordinator runs, in the directory that holds its warehouse:

    .venv/bin/python notebooks/examples/rocketmq_schedule.py 127.0.0.1:19092 warehouse
"""

from __future__ import annotations

import sys
import time
from typing import Any

import pyarrow
from deltalake import DeltaTable, QueryBuilder

from commitlake import DefaultMQProducer, Message, SendResult

GROUP, TOPIC = "ExampleProducerGroup", "TestTopic"
TOTAL, LEVEL = 100, 3


def send_hundred(producer: DefaultMQProducer) -> list[SendResult]:
    """Send the messages."""
    results = []
    for i in range(TOTAL):
        message = Message(TOPIC, f"Hello scheduled message {i}")
        message.set_delay_time_level(LEVEL)
        results.append(producer.send(message))
    return results


def visible(warehouse: str, results: list[SendResult]) -> list[dict[str, Any]]:
    """Return those that consumers see now."""
    place = f"{warehouse}/topics/{TOPIC}"
    if not DeltaTable.is_deltatable(place):
        return []
    tables = QueryBuilder().register("messages", DeltaTable(place))
    mine = ", ".join(f"'{result.msg_id}'" for result in results)
    found = pyarrow.table(tables.execute(f"SELECT * FROM messages WHERE message_id IN ({mine})"))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def main(bootstrap_servers: str, warehouse: str) -> None:
    """Send, then print when each became visible."""
    with DefaultMQProducer(GROUP, bootstrap_servers=bootstrap_servers) as producer:
        results = send_hundred(producer)
    while len(rows := visible(warehouse, results)) < TOTAL:
        print(f"{len(rows)} of {TOTAL} are visible")
        time.sleep(1)
    for row in sorted(rows, key=lambda row: row["stored_at"]):
        later = (row["visible_at"] - row["stored_at"]).total_seconds()
        print(f"{row['body'].decode()}: visible {later:.3f} s after it was stored")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["127.0.0.1:19092", "warehouse"]))
