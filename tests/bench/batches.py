"""Messages a second that one producer sends, one by one and in batches, each send acknowledged before the next.

    .venv/bin/python -m tests.bench.batches --seconds 10

The producer is CommitLake's own, in this process; there is a broker and no coordinator.
"""

from __future__ import annotations

import time

from tests.bench import rig

from commitlake import DefaultMQProducer, Message, config
from commitlake.kafka.topics import publish_settings

BODY = b"." * 256
SIZES = (1, 10, 100, 1_000, 5_000)


def main() -> None:
    """Measures and prints; the first second of each size is not counted."""
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each size")
    given = parser.parse_args()
    rates = {}
    with rig.Rig(given) as running:
        publish_settings(config.from_mapping({"kafka.bootstrap_servers": running.servers}), [])
        with DefaultMQProducer("bench", bootstrap_servers=running.servers) as producer:
            for size in SIZES:
                send(producer, size, 1)
                rates[size] = send(producer, size, given.seconds)
    figures = {f"{size:,} a send": {"messages/s": rate, "ratio": rate / rates[1]} for size, rate in rates.items()}
    rig.report("batches", given, figures)


def send(producer: DefaultMQProducer, size: int, seconds: float) -> float:
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        messages = [Message("orders", BODY) for _ in range(size)]
        producer.send(messages[0] if size == 1 else messages)
        count += size
    return count / elapsed


if __name__ == "__main__":
    main()
