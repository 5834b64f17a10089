"""A notebook on a cluster like those of Databricks, as far as that goes here; it runs a coordinator until a line comes.

python -m tests.support.databricks_child ROOT

The session is not CommitLake's: adaptive execution and broadcast joins are on, its default file system has a scheme of
its own, its tables are in a metastore, and it shows none of Delta's classes. `dbutils` has a secret, and a widget with
the place of the configuration. It prints what `doctor` says, `READY`, and, when a line has come, `AUDIT` with the
findings.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.hiding import hide

import commitlake
from commitlake import databricks
from commitlake.spark import jvm, session

SECRET = "of-the-scope"


def own_session(root: Path) -> SparkSession:
    """A session as a cluster hands it over."""
    quick = session.submit_settings("local[2]", short_lived=True)
    mount = "spark.hadoop.fs.viewfs.mounttable.default"
    settings = {
        **session.DELTA_SETTINGS,
        "spark.driver.extraClassPath": quick["spark.driver.extraClassPath"],
        "spark.driver.extraJavaOptions": quick["spark.driver.extraJavaOptions"],
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


def dbutils(root: Path) -> Any:
    """The part that is used of Databricks' object of this name."""
    secrets, widgets = {("commitlake", "client"): SECRET}, {"conf": f"{root}/Volumes/main/lake/conf/databricks.yaml"}
    return SimpleNamespace(
        secrets=SimpleNamespace(get=lambda scope, key: secrets[scope, key]),
        widgets=SimpleNamespace(get=widgets.__getitem__),
    )


def main(root: Path) -> None:
    patch, module = pytest.MonkeyPatch(), ModuleType("databricks.sdk.runtime")
    module.dbutils = own = dbutils(root)  # type: ignore[attr-defined]
    patch.setitem(sys.modules, module.__name__, module)
    patch.setattr(databricks, "_VOLUMES", f"{root}/Volumes/")
    patch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    hide(patch, [name for use in jvm.USES for name in use.names])
    spark, conf = own_session(root), own.widgets.get("conf")
    spark.sql("CREATE DATABASE IF NOT EXISTS lake LOCATION 'dbfs:/lake.db'")
    commitlake.doctor(spark, conf)
    with commitlake.start(spark, conf) as running:
        print("READY", running.epoch, flush=True)
        sys.stdin.readline()
    print("AUDIT", [str(each) for each in commitlake.audit(spark, "schema:spark_catalog.lake").findings], flush=True)
    spark.stop()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    main(Path(sys.argv[1]))
