"""Messages a second of one consumer, beside deltalake's reading of the same table; and how late it hands them over.

    .venv/bin/python -m tests.bench.consumer --rows 1000000 --commits 500

The topic table is written by deltalake as a coordinator writes one: 4 queues, so a commit makes 4 files.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.bench import rig
from tests.support.topic_table import SCHEMA, write

import commitlake

QUEUES = 4


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=500)
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="commitlake-consumer-"))
    try:
        fill(place, given)
        plain, ours, bulk = read_plainly(place), consume(place, given.rows), batches(place, given.rows)
        figures = {
            "deltalake": {"rows/s": given.rows / plain},
            "consumer": {"messages/s": given.rows / ours, "times deltalake": ours / plain},
            "batches": {"messages/s": given.rows / bulk, "times deltalake": bulk / plain},
            "late": late(place, given.commits),
        }
    finally:
        shutil.rmtree(place, ignore_errors=True)
    rig.report("consumer", given, figures)


def fill(place: Path, given: argparse.Namespace) -> None:
    """Write the topic, commit by commit."""
    write(place, "orders", [])
    table = DeltaTable(str(place / "topics" / "orders"))
    each = given.rows // given.commits
    for batch in range(given.commits):
        write_deltalake(table, rows(batch, each), mode="append")


def rows(batch: int, count: int) -> pa.Table:
    """One batch's rows, in all queues."""
    offsets = np.arange(batch * count, (batch + 1) * count)
    ids = [f"id-{offset}" for offset in offsets]
    now = [time.time_ns() // 1_000] * count
    given = {
        "queue_id": offsets % QUEUES,
        "source_queue": offsets % QUEUES,
        "source_offset": offsets,
        "source_index": np.zeros(count, int),
        "batch_id": np.full(count, batch),
        "message_id": ids,
        "transaction_id": ids,
        "keys": ids,
        "tags": ["paid"] * count,
        "source": ["half"] * count,
        "body": [b"." * 100] * count,
        "properties": [[("region", "eu")]] * count,
        "stored_at": now,
        "visible_at": now,
    }
    columns = [pa.array(given[f.name], f.type) if f.name in given else pa.nulls(count, f.type) for f in SCHEMA]
    return pa.table(columns, schema=SCHEMA)


def read_plainly(place: Path) -> float:
    """Seconds in which deltalake reads the table."""
    begun = time.perf_counter()
    DeltaTable(str(place / "topics" / "orders")).to_pyarrow_table()
    return time.perf_counter() - begun


def consume(place: Path, count: int) -> float:
    """Seconds in which a consumer gets and finishes all messages; it looks at each one's keys and body."""
    begun, seen = time.perf_counter(), 0
    with commitlake.consume({"warehouse": str(place)}, "orders", group="bench", follow=False) as messages:
        for message in messages:
            seen += bool(message.keys and message.body)
            message.done()
    assert seen == count, f"{seen} of {count} messages came"
    return time.perf_counter() - begun


def batches(place: Path, count: int) -> float:
    """Seconds in which a consumer gets and finishes all messages as Arrow tables."""
    begun, seen = time.perf_counter(), 0
    with commitlake.consume({"warehouse": str(place)}, "orders", group="bulk", follow=False) as messages:
        for batch in messages.batches():
            seen += len(batch)
            batch.done()
    assert seen == count, f"{seen} of {count} messages came"
    return time.perf_counter() - begun


def late(place: Path, batch: int) -> dict[str, float]:
    """From just before the commit of a message's row to its hand-over, with `poll` of 0.2 s, over 30 commits."""
    waits: list[float] = []
    with commitlake.consume(
        {"warehouse": str(place)}, "orders", group="late", start="newest", poll="200ms"
    ) as messages:

        def commit() -> None:
            time.sleep(3)
            for number in range(30):
                write_deltalake(str(place / "topics" / "orders"), rows(batch + number, 4), mode="append")
                time.sleep(0.5)
            time.sleep(2)
            messages.stop()

        writer = threading.Thread(target=commit)
        writer.start()
        for message in messages:
            waits.append(time.time() - message.visible_at.timestamp())
            message.done()
        writer.join()
    return {"p50_s": float(np.median(waits)), "most_s": max(waits)}


if __name__ == "__main__":
    main()
