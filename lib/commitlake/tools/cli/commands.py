"""The work of the commands, in Spark's driver; each returns its exit code."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import astuple, fields

from pyspark.sql import DataFrame, SparkSession

from commitlake.config import Config, databricks
from commitlake.config.locations import is_local
from commitlake.config.terminal import printable
from commitlake.coordinator.coordinator import Coordinator
from commitlake.coordinator.maintenance.run import Maintenance
from commitlake.coordinator.recovery import fencing
from commitlake.coordinator.recovery.signs import LOOK_S, Heartbeat, StopMark
from commitlake.errors import FencedError, SetupError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.encoding import Position
from commitlake.reading.questions import liveness
from commitlake.spark import cluster, cluster_mode, process, session
from commitlake.tables import Warehouse
from commitlake.tools import erase as erasing
from commitlake.tools.audit import admin, ledger
from commitlake.tools.audit import audit as auditing
from commitlake.tools.audit.audit import TopicCounts
from commitlake.tools.cli import output
from commitlake.tools.cli.output import NOTHING
from commitlake.tools.erase import ToErase

log = logging.getLogger(__name__)

MOST_ROWS = 1_000
_STOP_S = 300


def run(settings: Config, *, available_now: bool = False, standby: bool = False) -> None:
    """Run the coordinator until a signal comes, or until all records that are there are processed (`available_now`)."""
    process.PROGRESS.info("Java runs; starting Spark")
    spark = session.build(settings, app_name="commitlake-run")
    try:
        with _started(spark, settings, available_now, standby or cluster_mode.is_later_attempt()) as coordinator:
            if not available_now:
                _serve(coordinator)
    finally:
        if not databricks.is_here():  # where Spark is the cluster's, and a run that stops it may never end
            spark.stop()


def _started(spark: SparkSession, settings: Config, available_now: bool, standby: bool) -> Coordinator:
    while True:
        coordinator = Coordinator(spark, settings)
        if standby:
            coordinator.stand_by()
        try:
            return coordinator.start(available_now=available_now)
        except FencedError:  # another standby was quicker
            if not standby:
                raise


def _serve(coordinator: Coordinator) -> None:
    stop = process.stop_on_signals()
    conf = coordinator.config
    where = f"epoch={coordinator.epoch} warehouse={conf.warehouse} kafka={conf.kafka.bootstrap_servers}"
    print(f"READY {where}{' new warehouse' if coordinator.epoch == fencing.FIRST_EPOCH else ''}", flush=True)
    while not stop.is_set() and not coordinator.await_termination(timeout=0.2):
        pass
    if stop.is_set():
        log.warning("stopping: what is under way ends first")


def stop(settings: Config) -> int:
    """Ask the coordinator to stop, and wait until it has ended or another has taken over; 3 when none runs.

    Raises:
        SetupError: it does not end.
    """
    spark = _session_on_tables(settings, "stop")
    settings = cluster.resolved(spark, settings)
    warehouse, mark = Warehouse(spark, settings.warehouse), StopMark(spark, settings)
    runs = _runs(spark, settings)
    named = fencing.newest(warehouse)
    if named is None or not runs():
        print("no coordinator runs on this warehouse")
        return NOTHING
    print(f"asking the coordinator to stop: {named}", flush=True)
    mark.leave(named)
    until = time.monotonic() + _STOP_S
    while runs() and fencing.newest(warehouse) == named:
        if time.monotonic() > until:
            msg = f"{named} has not ended after {_STOP_S} s; it is of an older version, or runs with --available-now"
            raise SetupError(msg)
        time.sleep(LOOK_S)
    mark.clear(named)
    print("the coordinator has ended")
    return 0


def _runs(spark: SparkSession, settings: Config) -> Callable[[], bool]:
    """Whether a coordinator runs, asked again and again; off local disks by its signs, until they stand still."""
    if is_local(settings.warehouse):
        return lambda: liveness.runs(settings)
    return Heartbeat(spark, settings).lives


def show_ledger(settings: Config, transaction_id: str | None, *, counts: bool) -> int:
    """Show the history of a transaction, or counts, or without both what is pending.

    Returns 1 when nothing is known of the transaction, or when the counts do not agree.
    """
    spark, place = _session_on_tables(settings, "ledger"), settings.warehouse
    if transaction_id is not None:
        return int(not _show(ledger.transaction(spark, place, transaction_id)))
    rows = _show(ledger.summary(spark, place) if counts else ledger.pending(spark, place))
    return int(counts and not all(row["holds"] for row in rows))


def audit(settings: Config) -> int:
    """Compare the tables message by message; 1 when anything is not as it should be."""
    report = auditing.audit(_session_on_tables(settings, "audit"), settings.warehouse)
    output.show([field.name for field in fields(TopicCounts)], map(astuple, report.topics))
    for finding in report.findings:
        print(printable(str(finding)))
    print(report.verdict)
    return int(not report.is_well)


def first_half_message(settings: Config, transaction_id: str) -> Position:
    """Return the position of a transaction's first half message.

    Raises:
        TransactionNotFoundError: no half message, or those of several transactions, have this transaction id.
    """
    return admin.first_half_message(_session_on_tables(settings, "admin"), settings.warehouse, transaction_id)


def maintain(settings: Config) -> int:
    """Maintain the tables once; 1 when one of them failed.

    Raises:
        FencedError: a coordinator runs on this local warehouse.
    """
    spark = _session_on_tables(settings, "maintain")
    settings = cluster.resolved(spark, settings)
    warehouse = Warehouse(spark, settings.warehouse)
    with fencing.lock(settings, spark):
        warehouse.create()  # makes tables that an older version did not have
        report = Maintenance(warehouse, settings).run()
    print(report)
    return int(bool(report.failed))


def erase(settings: Config, wanted: ToErase, remark: str, *, sure: bool) -> int:
    """Count the rows that messages have in all tables and, when `sure`, erase what they say; 3 when there are none.

    Raises:
        FencedError: a coordinator runs on this local warehouse; elsewhere the call waits until none does.
        WarehouseError: a message is open.
    """
    spark = _session_on_tables(settings, "erase")
    settings = cluster.resolved(spark, settings)
    tables = Warehouse(spark, settings.warehouse)
    if not is_local(settings.warehouse):
        Heartbeat(spark, settings).await_silence()
    with fencing.lock(settings, spark):
        if sure:
            counts = erasing.erase(tables, f"{settings.receipts_place}/receipts", wanted, now_ms(), remark)
        else:
            counts = erasing.found(tables, wanted)
    output.show(("table", "rows"), counts.items())
    if not any(counts.values()):
        return NOTHING
    print(erasing.remains(settings, wanted) if sure else "nothing is erased yet: add --yes")
    return 0


def _session_on_tables(settings: Config, command: str) -> SparkSession:
    """Return a session; raises `WarehouseError` where the warehouse has no tables."""
    spark = session.build(settings, app_name=f"commitlake-{command}")
    Warehouse(spark, settings.warehouse).must_exist()
    return spark


def _show(found: DataFrame) -> list[dict[str, object]]:
    """Print rows, and return them; times are UTC: Arrow keeps their zone, rows of Spark have the machine's."""
    rows: list[dict[str, object]] = found.limit(MOST_ROWS).toArrow().to_pylist()
    output.show(found.columns, (row.values() for row in rows))
    print(f"({len(rows)} rows{', the first ones' if len(rows) == MOST_ROWS else ''})")
    return rows
