"""Transactions a second of one producer process, beside two plain sends of kafka-python; checks answered a second.

    .venv/bin/python -m tests.bench.clients --seconds 10

There is a broker and no coordinator. A transaction is a half message, whose acknowledgement is awaited, a local
transaction that does nothing, and an op, which is not waited for. The plain sends are the same two records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kafka import KafkaProducer
from tests.bench import rig
from tests.support.namespace import check

from commitlake import LocalTransactionState, Message, TransactionListener, TransactionMQProducer, config
from commitlake.clients.producer.link import ENGINES
from commitlake.config import Config
from commitlake.kafka.topics import end_offsets, ensure_topics, publish_settings
from commitlake.protocol.kafka_topics import CHECK, OP
from commitlake.testing import codecs

BODY = b"." * 256
THREADS = (1, 8, 64)
CHECKS = 50_000


class AtOnce(TransactionListener):
    """Answers at once, and counts."""

    def __init__(self) -> None:
        self.answered = 0

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: Message) -> LocalTransactionState:
        self.answered += 1
        return LocalTransactionState.COMMIT_MESSAGE


def main() -> None:
    """Measures and prints; the first second of each is not counted."""
    parser = rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="what sends the transactions")
    given = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with rig.Rig(given) as running:
        conf = config.from_mapping({"kafka.bootstrap_servers": running.servers})
        ensure_topics(conf)
        publish_settings(conf, [])
        for threads in THREADS:
            figures[f"{threads} threads"] = side_by_side(running.servers, threads, given.seconds, given.engine)
        figures["checks"] = {"answered/s": checks(conf)}
    rig.report("clients", given, figures)


def side_by_side(servers: str, threads: int, seconds: float, engine: str = ENGINES[0]) -> dict[str, float]:
    """Transactions a second of both."""
    with TransactionMQProducer("bench", AtOnce(), bootstrap_servers=servers, engine=engine) as ours:
        mine = rate(lambda: ours.send_message_in_transaction(Message("orders", BODY)), threads, seconds)
    plain = KafkaProducer(bootstrap_servers=servers, acks="all")

    def two_sends() -> None:
        plain.send("commitlake.half", BODY, headers=[("REAL_TOPIC", b"orders")], partition=0).get(60)
        plain.send("commitlake.op", BODY, partition=0)

    theirs = rate(two_sends, threads, seconds)
    plain.close()
    return {"transactions/s": mine, "kafka-python/s": theirs, "ratio": mine / theirs}


def rate(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Calls a second, of so many threads."""
    counts, counting, stop = [0] * threads, threading.Event(), threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            call()
            counts[number] += counting.is_set()

    with ThreadPoolExecutor(threads) as pool:
        for number in range(threads):
            pool.submit(work, number)
        time.sleep(1)
        counting.set()
        time.sleep(seconds)
        found = sum(counts)
        stop.set()
    return found / seconds


def checks(conf: Config) -> float:
    """Checks a second that one instance answers, from the first op to the last one that Kafka acknowledged."""
    sender = KafkaProducer(bootstrap_servers=conf.kafka.bootstrap_servers, linger_ms=20)
    for number in range(CHECKS):
        key, value, headers = codecs.encode_check(check(f"m{number}", "bench", check_id=f"0-{number}-0-1"))
        sender.send(conf.kafka.topic(CHECK), key=key, value=value, headers=headers, partition=number % 4)
    sender.close()
    before = count(conf)
    with TransactionMQProducer("bench", AtOnce(), bootstrap_servers=conf.kafka.bootstrap_servers):
        begun = until(conf, before + 1)
        return (CHECKS - 1) / (until(conf, before + CHECKS) - begun)


def until(conf: Config, answers: int) -> float:
    """The time at which Kafka holds so many ops."""
    while count(conf) < answers:
        time.sleep(0.05)
    return time.perf_counter()


def count(conf: Config) -> int:
    return sum(sum(ends.values()) for ends in end_offsets(conf, [OP]).values())


if __name__ == "__main__":
    main()
