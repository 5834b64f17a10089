"""The commands `ledger`, `audit`, `admin`, `maintain` and `config`: command lines to answers on the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from commitlake import config
from commitlake.errors import ConfigError
from commitlake.maintenance.run import Maintenance
from commitlake.ops import admin as administration
from commitlake.ops import ledger as questions
from commitlake.ops.audit import TopicCounts
from commitlake.ops.audit import audit as compare
from commitlake.protocol.encoding import Position
from commitlake.recovery import fencing
from commitlake.spark import session
from commitlake.tables import Warehouse

MOST_ROWS = 1_000


def ledger(arguments: Sequence[str]) -> int:
    """Answer a question to the ledger; exit code 1 when there is nothing to show, or when the counts do not agree."""
    parser = _parser("ledger", "What became of transactions.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("transaction_id", nargs="?", help="show all that is known of this transaction, in time order")
    what.add_argument("--pending", action="store_true", help="show the transactions without an end, the oldest first")
    what.add_argument("--summary", action="store_true", help="count by topic and state, and say whether that agrees")
    given = parser.parse_args(arguments)
    conf = config.load(given.conf, given.set)
    spark = session.build(conf, app_name="commitlake-ledger", short_lived=True)
    Warehouse(spark, conf.warehouse).must_exist()
    if given.summary:
        rows = show(questions.summary(spark, conf.warehouse))
        return int(not all(row["holds"] for row in rows))
    if given.pending:
        show(questions.pending(spark, conf.warehouse))
        return 0
    return int(not show(questions.transaction(spark, conf.warehouse, given.transaction_id)))


def audit(arguments: Sequence[str]) -> int:
    """Compare the tables message by message; exit code 1 when anything is not as it should be."""
    given = _parser("audit", "Whether the tables agree, message by message.").parse_args(arguments)
    conf = config.load(given.conf, given.set)
    spark = session.build(conf, app_name="commitlake-audit")
    Warehouse(spark, conf.warehouse).must_exist()
    report = compare(spark, conf.warehouse)
    _print_table([field.name for field in fields(TopicCounts)], map(astuple, report.topics))
    for finding in report.findings:
        print(finding)
    count = sum(finding.count for finding in report.findings)
    print(f"{'all is well' if report.is_well else f'{count} findings'} up to batch {report.last_batch}")
    return int(not report.is_well)


def admin(arguments: Sequence[str]) -> int:
    """Send an administrator's decision on one transaction."""
    parser = _parser("admin", "Reopen a discarded transaction, or end a pending one by force.")
    parser.add_argument("decision", choices=[name.lower() for name in administration.DECISIONS])
    parser.add_argument("transaction_id")
    parser.add_argument("--remark", required=True, help="why; kept in the table op")
    parser.add_argument("--at", type=Position.parse, metavar="QUEUE-OFFSET", help="its first half message")
    given = parser.parse_args(arguments)
    conf = config.load(given.conf, given.set)
    if conf.kafka.is_embedded:
        msg = (
            "kafka.bootstrap_servers: 'embedded' is not allowed here; "
            "give the address on the coordinator's READY line with --set kafka.bootstrap_servers=HOST:PORT"
        )
        raise ConfigError(msg)
    first = given.at
    if first is None:
        spark = session.build(conf, app_name="commitlake-admin", short_lived=True)
        first = administration.first_half_message(spark, conf.warehouse, given.transaction_id)
    decision = given.decision.upper()
    at = administration.send(conf.kafka, decision, given.transaction_id, first, given.remark)
    print(f"{decision} of the transaction at {first} stands in {conf.kafka.topic('admin')} at {at}")
    print("the command `ledger` with its transaction id shows what came of it, within some seconds")
    return 0


def maintain(arguments: Sequence[str]) -> int:
    """Maintain the tables once; on a local warehouse only while no coordinator runs, which does it by itself."""
    given = _parser("maintain", "Delete old rows, compact tables, remove unused files.").parse_args(arguments)
    conf = config.load(given.conf, given.set)
    spark = session.build(conf, app_name="commitlake-maintain")
    tables = Warehouse(spark, conf.warehouse)
    tables.must_exist()
    with fencing.lock(conf) as lock:
        tables.create()  # those that an older version did not have
        report = Maintenance(spark, conf, is_owner=lock is not None).run()
    print(report)
    return int(bool(report.failed))


def show_config(arguments: Sequence[str]) -> int:
    """Print the configuration that a file, the environment and `--set` make, secrets masked."""
    given = _parser("config", "Show the configuration.").parse_args(arguments)
    print(config.load(given.conf, given.set).describe())
    return 0


def show(found: DataFrame) -> list[dict[str, object]]:
    """Print rows as a table with columns as wide as they need, and return them; times are UTC."""
    rows = [row.asDict() for row in _with_texts_for_times(found).limit(MOST_ROWS).collect()]
    _print_table(found.columns, (row.values() for row in rows))
    print(f"({len(rows)} rows{', the first ones' if len(rows) == MOST_ROWS else ''})")
    return rows


def _print_table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    lines = [columns, *[["" if value is None else str(value) for value in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _with_texts_for_times(found: DataFrame) -> DataFrame:
    """Python would show them in the zone of the machine, Spark shows them in the session's, which is UTC."""
    times = {name for name, kind in found.dtypes if kind == "timestamp"}
    return found.select(
        *[
            F.date_format(name, "yyyy-MM-dd HH:mm:ss.SSS").alias(name) if name in times else name
            for name in found.columns
        ]
    )


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"./spark-submit.sh {name}", description=description)
    parser.add_argument("--conf", help="the coordinator's YAML file; defaults hold for what it does not say")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="wins over the file")
    return parser
