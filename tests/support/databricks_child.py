"""A notebook on a cluster like those of Databricks, as far as that goes here; it runs a coordinator until a line comes.

python -m tests.support.databricks_child ROOT [all]

The session is not CommitLake's: adaptive execution and broadcast joins are on, its default file system has a scheme of
its own, its tables are in the catalog `main` over a metastore, it takes no path of theirs, and it shows none of Delta's
classes. `dbutils` has a secret, and a widget with the place of the configuration. It prints what `doctor` says and
`READY`. When a line has come, and with `all`, it prints `JOBS` with what `databricks_jobs` did, and runs notebooks.
Then it prints `AUDIT` with the findings, and runs the notebooks that have a coordinator of their own.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from tests.support import databricks_jobs
from tests.support.databricks_jobs import Dbutils
from tests.support.hiding import hide, refuse_paths

import commitlake
from commitlake import databricks
from commitlake.spark import jvm, session

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
            print("JOBS", databricks_jobs.jobs(spark, conf, f"{root}/Volumes/main/lake/checkpoints"), flush=True)
            for name in READING:
                databricks_jobs.notebook(name, warehouse="schema:main.lake")
    print("AUDIT", [str(each) for each in commitlake.audit(spark, "schema:main.lake").findings], flush=True)
    if runs_all:
        databricks_jobs.notebook(
            QUICKSTART,
            warehouse=f"schema:main.{QUICKSTART}",
            checkpoints=f"{root}/Volumes/main/lake/{QUICKSTART}",
            bootstrap_servers=running.config.kafka.bootstrap_servers,
            place=str(root),
        )
        hiding.undo()  # without a catalog the logs of tables are read by Hadoop's classes
        for name in ("delta_tables", "typed_topics"):
            databricks_jobs.notebook(name)
    spark.stop()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    main(Path(sys.argv[1]), runs_all=sys.argv[2:] == ["all"])
