"""Messages a second that one producer sends, one by one and in batches, each send acknowledged before the next.

.venv/bin/python -m tests.bench.batches --seconds 10
"""

from __future__ import annotations

import argparse
import time

from commitlake import DefaultMQProducer, Message, config
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.topics import ensure_topics, publish_settings

BODY = b"." * 256
SIZES = (1, 10, 100, 1_000, 5_000)


def main() -> None:
    """Measures and prints; the first second of each size is not counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    with EmbeddedBroker() as broker:
        conf = config.from_mapping({"kafka.bootstrap_servers": broker.bootstrap_servers})
        ensure_topics(conf)
        publish_settings(conf, [])
        with DefaultMQProducer("bench", bootstrap_servers=broker.bootstrap_servers) as producer:
            single = 0.0
            for size in SIZES:
                send(producer, size, 1)
                rate = send(producer, size, given.seconds)
                single = single or rate
                print(f"{size:>5} a send: {rate:>9,.0f} messages/s, {rate / single:.0f} times", flush=True)


def send(producer: DefaultMQProducer, size: int, seconds: float) -> float:
    """Messages a second."""
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        messages = [Message("orders", BODY) for _ in range(size)]
        producer.send(messages[0] if size == 1 else messages)
        count += size
    return count / elapsed


if __name__ == "__main__":
    main()
