"""A notebook on a cluster like those of Databricks, as far as that goes here; it runs a coordinator until a line comes.

python -m tests.support.databricks ROOT [all]

The session is not CommitLake's: adaptive execution and broadcast joins are on, its default file system has a scheme of
its own, its tables are in the catalog `main` over a metastore, it takes no path of theirs, and it shows none of Delta's
classes. `dbutils` has a secret, and a widget with the place of the configuration. It prints what `doctor` says and
`READY`. When a line has come, and with `all`, it prints `JOBS` with what `jobs` did, and runs notebooks.
Then it prints `AUDIT` with the findings, and runs the notebooks that have a coordinator of their own."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from delta.tables import DeltaTable
from py4j.java_gateway import JavaPackage
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from tests.support.killing import ROOT
from tests.support.polling import WAIT_S, patience

import commitlake
from commitlake.config import databricks
from commitlake.errors import NoTableError
from commitlake.spark import jvm, session

ORDERS = "main.sales.orders"


class Dbutils:
    """The part that is used of Databricks' object of this name.

    Args:
        secrets: values by scope and key.
        given: what users have written into widgets.
    """

    def __init__(self, secrets: Mapping[tuple[str, str], str], given: Mapping[str, str]) -> None:
        values = dict(given)
        self.secrets = SimpleNamespace(get=lambda scope, key: secrets[scope, key])
        self.widgets = SimpleNamespace(text=values.setdefault, get=values.__getitem__)


def jobs(spark: SparkSession, conf: str, checkpoints: str) -> tuple[list[str], int]:
    """A transaction with a table by its name, a stream of that table to a topic, and receipts for what it sent.

    Returns:
        The bodies of both topics, and how many messages have a receipt.
    """
    spark.sql(f"CREATE TABLE {ORDERS} (id BIGINT) USING delta")
    with commitlake.delta_transaction(spark, conf, "nightly") as tx:
        tx.send(commitlake.Message("daily", "of a transaction"))
        tx.append(spark.range(3), ORDERS)
    send = commitlake.sink(conf, "hourly", name="hourly", group="nightly", body="CAST(id AS STRING)")
    rows = spark.readStream.table(ORDERS).writeStream.foreachBatch(send).trigger(availableNow=True)
    query = rows.option("checkpointLocation", f"dbfs:{checkpoints}/hourly").start()
    assert query.awaitTermination(120) and query.exception() is None, query.exception()
    until = time.monotonic() + WAIT_S * patience()
    while len(seen := _bodies(spark, conf, "daily") + _bodies(spark, conf, "hourly")) < 4:
        assert time.monotonic() < until, seen
        time.sleep(1)
    receipts = commitlake.receipts(conf, "hourly", group="points")
    receipts.done(commitlake.read_topic(spark, conf, "hourly"))
    place = commitlake.config.of(conf).receipts_place
    done = spark.read.format("delta").load(f"file:{place}/receipts").where("state = 'DONE'").count()
    return sorted(seen), done


def _bodies(spark: SparkSession, conf: str, topic: str) -> list[str]:
    try:
        return [bytes(row["body"]).decode() for row in commitlake.read_topic(spark, conf, topic).collect()]
    except NoTableError:
        return []


def notebook(name: str, **widgets: str) -> None:
    """Runs a notebook where Databricks' names are there, after the line `NOTEBOOK` with its name."""
    print("NOTEBOOK", name, flush=True)
    file = ROOT / "notebooks" / f"{name}.py"
    names: dict[str, Any] = {"__name__": "__main__", "dbutils": Dbutils({}, widgets), "display": _display}
    exec(compile(file.read_text(), file, "exec"), names)


def _display(what: object) -> None:
    if isinstance(what, DataFrame):
        what.show(truncate=False)
    else:
        print(type(what).__name__)


class _Hiding:
    """A JVM that takes some classes for packages, as py4j does with what it does not find."""

    def __init__(self, real: Any, hidden: Collection[str]) -> None:
        self._real, self._hidden = real, hidden

    def __getattr__(self, name: str) -> Any:
        return JavaPackage(name, None) if name in self._hidden else getattr(self._real, name)


def hide(patch: pytest.MonkeyPatch, names: Collection[str]) -> None:
    """Hides classes from all that looks them up."""
    real = jvm._of

    def of(spark: SparkSession) -> Any:
        return _Hiding(real(spark), names)

    patch.setattr(jvm, "_of", of)


def refuse_paths(patch: pytest.MonkeyPatch, managed: Collection[str]) -> None:
    """Takes no path below some places, as Unity Catalog takes none of a table that it manages."""
    for owner, name in (
        *((DataFrameReader, "load"), (DataFrameWriter, "save"), (DataStreamReader, "load")),
        *((DeltaTable, "forPath"), (DeltaTable, "isDeltaTable")),
    ):
        patch.setattr(owner, name, _refusing(getattr(owner, name), managed))


def _refusing(call: Callable[..., Any], managed: Collection[str]) -> Callable[..., Any]:
    def refusing(*given: Any, **named: Any) -> Any:
        for each in (*given, *named.values()):
            if isinstance(each, str) and each.startswith(tuple(managed)):
                msg = f"[LOCATION_OVERLAP] {each} overlaps with managed storage"
                raise AnalysisException(msg)
        return call(*given, **named)

    return refusing


SECRET = "of-the-scope"
QUICKSTART = "quickstart"
READING = ("reading", "ledger", "operations")
"""Notebooks that read the tables of a coordinator, which may run."""


def own_session(root: Path) -> SparkSession:
    """A session as a cluster hands it over."""
    quick = session.submit_settings("local[2]", short_lived=True)
    mount = "spark.hadoop.fs.viewfs.mounttable.default"
    settings = {
        **session.DELTA_SETTINGS,
        "spark.driver.extraClassPath": os.pathsep.join([quick["spark.driver.extraClassPath"], f"{root}/classes"]),
        "spark.driver.extraJavaOptions": quick["spark.driver.extraJavaOptions"],
        "spark.sql.catalog.main": "NamedCatalog",
        "spark.sql.warehouse.dir": "dbfs:/user/hive/warehouse",
        "spark.hadoop.fs.defaultFS": "dbfs:///",
        "spark.hadoop.fs.dbfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        f"{mount}.linkFallback": f"file://{root}/dbfs",
        f"{mount}.link.{root}/Volumes": f"file://{root}/Volumes",
        "spark.delta.logStore.dbfs.impl": "io.delta.storage.LocalLogStore",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "2",  # by default an audit here has thousands of tasks
    }
    builder = SparkSession.builder.master("local[2]").appName("a notebook of somebody else").enableHiveSupport()
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(root: Path, *, runs_all: bool) -> None:
    patch, hiding, module = pytest.MonkeyPatch(), pytest.MonkeyPatch(), ModuleType("databricks.sdk.runtime")
    own = Dbutils({("commitlake", "client"): SECRET}, {"conf": f"{root}/Volumes/main/lake/conf/databricks.yaml"})
    module.dbutils = own  # type: ignore[attr-defined]
    patch.setitem(sys.modules, module.__name__, module)
    patch.setattr(databricks, "_VOLUMES", f"{root}/Volumes/")
    patch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    hide(hiding, [name for use in jvm.USES for name in use.names])
    refuse_paths(patch, [f"dbfs:/{name}.db" for name in ("lake", QUICKSTART)] + [f"file:{root}/sales.db"])
    spark, conf = own_session(root), own.widgets.get("conf")
    for name, place in (("lake", "dbfs:"), (QUICKSTART, "dbfs:"), ("sales", f"file:{root}")):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS main.{name} LOCATION '{place}/{name}.db'")
    commitlake.doctor(spark, conf)
    with commitlake.start(spark, conf) as running:
        print("READY", running.epoch, flush=True)
        sys.stdin.readline()
        if runs_all:
            print("JOBS", jobs(spark, conf, f"{root}/Volumes/main/lake/checkpoints"), flush=True)
            for name in READING:
                notebook(name, warehouse="schema:main.lake")
    print("AUDIT", [str(each) for each in commitlake.audit(spark, "schema:main.lake").findings], flush=True)
    if runs_all:
        notebook(
            QUICKSTART,
            warehouse=f"schema:main.{QUICKSTART}",
            checkpoints=f"{root}/Volumes/main/lake/{QUICKSTART}",
            bootstrap_servers=running.config.kafka.bootstrap_servers,
            place=str(root),
        )
        hiding.undo()  # without a catalog the logs of tables are read by Hadoop's classes
        for name in ("delta_tables", "typed_topics"):
            notebook(name)
    spark.stop()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    main(Path(sys.argv[1]), runs_all=sys.argv[2:] == ["all"])
