"""A notebook's session as Databricks has it, and a coordinator in it; `test_databricks` starts and kills it.

python -m tests.support.databricks_child PLACE CONFIG_JSON JARS

Delta's inner classes have other names, `fs.defaultFS` is `dbfs:`, a metastore holds the tables, and adaptive execution
is on. Lines of its input are commands: `count TOPIC`, `append` (a Delta transaction by names), `audit`, `stop`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.renamed_delta import CATALOG

import commitlake
from commitlake.config import from_mapping


def session(place: Path, jars: str) -> SparkSession:
    """The session, with nothing that CommitLake would have set."""
    settings = {
        "spark.jars": jars,
        "spark.driver.extraClassPath": jars.replace(",", os.pathsep),
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Xss8m -XX:-DontCompileHugeMethods -Dderby.system.home={place}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": CATALOG,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"file:{place}/managed",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/metastore;create=true",
        "spark.hadoop.fs.defaultFS": "dbfs://root/",
        "spark.hadoop.fs.dbfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "spark.hadoop.fs.viewfs.overload.scheme.target.dbfs.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.hadoop.fs.viewfs.mounttable.root.linkFallback": f"file://{place}",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("notebook")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Runs a coordinator, and does what its input says."""
    place, conf = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark = session(place, sys.argv[3])
    spark.sql("CREATE SCHEMA IF NOT EXISTS lake")
    before = dict(spark.conf.getAll)  # the user's own settings stay
    with commitlake.start(spark, conf) as running:
        print("READY", running.epoch, flush=True)
        for line in sys.stdin:
            command, *words = line.split()
            if command == "stop":
                break
            print(command, *do(spark, conf, command, *words), flush=True)
        assert running.await_termination(timeout=0) is False
    assert {name: value for name, value in spark.conf.getAll.items() if name in before} == before
    print("STOPPED", flush=True)


def do(spark: SparkSession, conf: dict[str, object], command: str, *words: str) -> list[object]:
    """Carries out a command; returns what is printed of it."""
    if command == "count":
        try:
            return [commitlake.read_topic(spark, conf, words[0]).count()]
        except commitlake.NoTableError:
            return [0]
    if command == "append":
        spark.sql("CREATE SCHEMA IF NOT EXISTS shop")
        spark.sql("CREATE TABLE IF NOT EXISTS shop.stock (id INT) USING delta")
        with commitlake.delta_transaction(spark, conf, "stock-service") as transaction:
            transaction.append(spark.createDataFrame([(1,)], "id INT"), "spark_catalog.shop.stock")
            transaction.send(commitlake.Message("stock", b"moved"))
        return [spark.table("shop.stock").count()]
    return [commitlake.audit(spark, from_mapping(conf).warehouse).is_well]


if __name__ == "__main__":
    main()
