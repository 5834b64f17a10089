"""How long a start takes with a long history: from the command to the first decided batch, with and without checkpoint.

    .venv/bin/python -m tests.bench.restart --millions 20 --open 1000000

The tables are written by Spark; the coordinator is the command that users start, with a driver heap of 2 GiB. When it
is ready a transaction is sent, whose row in the topic's table is the first decision; then the coordinator is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kafka import KafkaProducer
from tests.bench import synthetic
from tests.support.polling import wait_for
from tests.support.running import coordinator

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import session
from commitlake.tables import Warehouse

_TIMEOUT_S = 900


def main() -> None:
    """Writes the tables, starts three times, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=20, help="decided transactions")
    parser.add_argument("--open", type=int, default=1_000_000, help="transactions without an end")
    parser.add_argument("--fill", type=Path, help="only write the tables there")
    given = parser.parse_args()
    if given.fill:
        fill(given.fill, int(given.millions * 1e6), given.open)
        return
    with (
        tempfile.TemporaryDirectory(prefix="commitlake-bench-") as place,
        EmbeddedBroker(Path(place, "kafka")) as kafka,
    ):
        arguments = ["--millions", str(given.millions), "--open", str(given.open), "--fill", f"{place}/warehouse"]
        subprocess.run([sys.executable, "-m", "tests.bench.restart", *arguments], check=True)
        print(f"{given.millions:g} M decided, {given.open:,} open", flush=True)
        for number, name in enumerate(["first start", "with the checkpoints of the last", "without checkpoints"]):
            if number == 2:
                shutil.rmtree(Path(place, "checkpoints"))
            print(f"{name}: {start(Path(place), kafka.bootstrap_servers, number)}", flush=True)


def fill(place: Path, decided: int, open_: int) -> None:
    """In a process of its own, whose memory is free again when the coordinator starts."""
    spark = session.build(app_name="bench-restart")
    synthetic.fill(Warehouse(spark, str(place)), decided, open_)
    spark.stop()


def start(place: Path, servers: str, number: int) -> str:
    """Seconds to READY and to the first decision, and the memory it took."""
    settings = {"kafka__bootstrap_servers": servers, "transaction__timeout": "1h", "maintenance__interval": "0s"}
    begun = time.perf_counter()
    with coordinator(place, heap="2g", **settings) as running:
        wait_for(lambda: "READY" in running.said or running.process.poll() is not None, _TIMEOUT_S)
        assert "READY" in running.said, running.said
        ready = time.perf_counter() - begun
        send(servers, f"after start {number}")
        wait_for(lambda: decided(place) > number, _TIMEOUT_S, lambda: running.said)
        first = time.perf_counter() - begun
        peak = peak_memory(running.process.pid)
        os.killpg(running.process.pid, signal.SIGKILL)
    return f"READY after {ready:.1f} s, first decision after {first:.1f} s, {peak:,.0f} MiB"


def send(servers: str, name: str) -> None:
    """A transaction and its COMMIT."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    headers = [("REAL_TOPIC", b"first"), ("UNIQ_KEY", name.encode()), ("PGROUP", b"bench")]
    at = producer.send("commitlake.half", b"body", partition=0, headers=headers).get(30)
    told = {"transaction_id": name, "producer_group": "bench", "decision": "COMMIT"}
    op = told | {"half_messages": [{"queue": at.partition, "offset": at.offset}]}
    producer.send("commitlake.op", json.dumps(op).encode(), name.encode(), partition=at.partition)
    producer.close()


def decided(place: Path) -> int:
    """How many of the transactions sent here are visible."""
    from deltalake import DeltaTable

    table = str(place / "warehouse" / "topics" / "first")
    return DeltaTable(table).count() if DeltaTable.is_deltatable(table) else 0


def peak_memory(session_id: int) -> float:
    """MiB that the processes of a session had at most, each by itself."""
    peaks = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getsid(int(status.parent.name)) == session_id:
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
                peaks.append(int(lines["VmHWM"].split()[0]) / 1_024)
        except (OSError, KeyError):
            continue
    return sum(peaks)


if __name__ == "__main__":
    main()
