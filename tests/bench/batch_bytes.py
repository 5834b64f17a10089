"""Bytes on the wire of a batch of 1 000, and what making it costs, in both forms of its value, plain and with gzip.

    .venv/bin/python -m tests.bench.batch_bytes

There is no broker: records are made and put into Kafka's record batches as kafka-python does it, with its gzip of level
9. The forms take turns, and the time is that of the process on a core, so that other work changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from statistics import median

from kafka.record.default_records import DefaultRecordBatchBuilder
from tests.bench import rig

from commitlake import Message, config
from commitlake.clients.producer.record_maker import RecordMaker
from commitlake.protocol import wire

_FORMS = {"joined": True, "JSON": False}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1_000, help="messages in a batch; 1 is a batch of one")
    parser.add_argument("--turns", type=int, default=15, help="how often each is made; the median counts")
    given = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for size in (256, 1_024):
        for kind, made in (("random", os.urandom), ("typical", order)):
            figures |= measure(f"{kind}, {size} B", [made(size) for _ in range(given.members)], given.turns)
    rig.report("batch_bytes", given, figures)


def order(size: int) -> bytes:
    """JSON as a shop sends it, filled with items up to `size` bytes."""
    chosen = random.Random(os.urandom(8))
    head = {"order": chosen.randrange(10**9), "customer": f"customer-{chosen.randrange(10**6)}", "status": "NEW"}
    text = json.dumps(head)
    while len(text) < size:
        text += json.dumps({"sku": f"{chosen.getrandbits(32):08X}", "quantity": chosen.randrange(9), "price": 9.99})
    return text[:size].encode()


def measure(name: str, bodies: list[bytes], turns: int) -> dict[str, dict[str, float]]:
    """Bytes for each byte of a body, and us for each message, by form and compression."""
    rules = config.from_mapping({}).limits([])
    makers = {form: RecordMaker("bench", with_head(rules, is_joined)) for form, is_joined in _FORMS.items()}
    kinds = [(form, codec) for form in makers for codec in (0, DefaultRecordBatchBuilder.CODEC_GZIP)]
    spent: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    sizes = {}
    for _ in range(turns):
        for kind in kinds:
            messages = [Message("orders", body) for body in bodies]
            begun = time.process_time()
            sizes[kind] = len(batch(makers[kind[0]], messages, kind[1]))
            spent[kind].append((time.process_time() - begun) / len(bodies) * 1e6)
    total = sum(map(len, bodies))
    return {
        f"{name}, {form}{', gzip' if codec else ''}": {
            "bytes": sizes[form, codec],
            "ratio": sizes[form, codec] / total,
            "us a message": median(spent[form, codec]),
        }
        for form, codec in kinds
    }


def with_head(rules: wire.Settings, is_joined: bool) -> wire.Settings:
    """The settings of a coordinator of this version, or of one of version 4 of the contract."""
    return wire.Settings(**{**vars(rules), "batch_head": is_joined})


def batch(maker: RecordMaker, messages: list[Message], codec: int) -> bytes:
    """Kafka's record batch with the one record of a batch of messages."""
    record = wire.encode_message(maker.batch(messages)[0])
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 16_384)
    builder.append(0, 1_767_225_600_000, record.key, record.value, record.headers)
    return bytes(builder.build())


if __name__ == "__main__":
    main()
