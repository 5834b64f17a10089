"""How long an audit takes after millions of transactions, in a warehouse that is written for it.

    .venv/bin/python -m tests.bench.audit --millions 20

The first audit is that of a fresh session, and must find all well; before the second one of the visible rows is written
once more, and just that must be found. 20 M transactions take 2.5 GB of the temporary directory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.bench import synthetic

from commitlake.ops.audit import AuditReport, audit
from commitlake.spark import session
from commitlake.tables import Warehouse, topic_table

OPEN = 1_000  # for each million that ended


def main() -> None:
    """Writes the tables, measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--millions", type=int, default=20)
    millions = parser.parse_args().millions
    spark = session.build(app_name="bench-audit")
    with tempfile.TemporaryDirectory(prefix="commitlake-bench-") as place:
        tables = Warehouse(spark, place)
        begun = time.perf_counter()
        synthetic.fill(tables, millions * 1_000_000, millions * OPEN)
        size = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
        seconds = time.perf_counter() - begun
        print(f"{millions} M transactions, {size / 1e9:.1f} GB, written in {seconds:.0f} s", flush=True)
        first = measured(tables, millions)
        assert first.is_well, first
        tables.append(tables.read(topic_table(synthetic.TOPIC)).limit(1), topic_table(synthetic.TOPIC))
        findings = measured(tables, millions).findings
        assert [(finding.name, finding.count) for finding in findings] == [("VISIBLE_TWICE", 1)], findings
    spark.stop()


def measured(tables: Warehouse, millions: int) -> AuditReport:
    """Audits, and tells how long that took."""
    begun = time.perf_counter()
    report = audit(tables.spark, tables.root)
    seconds = time.perf_counter() - begun
    print(f"audited in {seconds:.0f} s, {millions * 1_000_000 / seconds:,.0f} transactions/s", flush=True)
    return report


if __name__ == "__main__":
    main()
