"""The audit, in a process of its own: its Java starts while the story goes on, and it audits when the story has ended.

Usage: python -m commitlake.tools.demo.auditor WAREHOUSE. The audit begins at a line of standard input; without one the
process ends when its input does. Its exit code is that of `commitlake audit`.
"""

from __future__ import annotations

import sys

import commitlake


def main() -> int:
    """Start Spark, read a table, which loads the code of Delta, and audit when asked to."""
    spark, warehouse = commitlake.session(), sys.argv[1]
    commitlake.read_table(spark, {"warehouse": warehouse}, "batches").count()
    if not sys.stdin.readline():
        return 1
    report = commitlake.audit(spark, warehouse)
    print(*report.findings, report.verdict, sep="\n")
    return int(not report.is_well)


if __name__ == "__main__":
    sys.exit(main())
