"""Checks, before anything is written, that driver, executors and the places of the tables fit together."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import replace

from pyspark.sql import SparkSession

from commitlake.config import Config, databricks
from commitlake.config.locations import has_scheme, is_local, no_parent
from commitlake.errors import ConfigError, SetupError, root_reason
from commitlake.spark import executors, runtime
from commitlake.spark.jvm import hadoop, java, load
from commitlake.spark.session import is_one_machine

_SINGLE_DRIVER = "io.delta.storage.S3SingleDriverLogStore"
_NEEDED_CLASSES = {
    "Delta": "io.delta.sql.DeltaSparkSessionExtension",
    "the Kafka connector": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
}
_OF_AVRO = {"spark-avro": "org.apache.spark.sql.avro.AvroDataToCatalyst"}


def resolved(spark: SparkSession, config: Config) -> Config:
    """The configuration with its places as Spark resolves them: a plain path is on the file system of `fs.defaultFS`.

    On a cluster `/lake` is rarely a directory of the driver, and a lock there would keep nobody out. Delta creates a
    table only where it is named as Spark resolves it: not at `hdfs:///lake`, nor at `file:///lake`.
    """
    return replace(
        config, warehouse=_resolved(spark, config.warehouse), checkpoints=_resolved(spark, config.checkpoints)
    )


def _resolved(spark: SparkSession, place: str) -> str:
    if has_scheme(place) and ":///" not in place:
        return place
    default = java(spark, "org.apache.hadoop.fs.FileSystem").getDefaultUri(hadoop(spark))
    if not has_scheme(place) and default.getScheme() == "file":
        return place
    path = java(spark, "org.apache.hadoop.fs.Path")(place)
    is_there = not has_scheme(place) or place.startswith(f"{default.getScheme()}:")
    return str((path.makeQualified(default, path) if is_there else path).toString())


def check(spark: SparkSession, config: Config) -> None:
    """Rejects a setup that could not work, or would break a promise, on Spark's cluster; `config` is as `resolved`.

    Raises:
        ConfigError: executors can't see the warehouse, the checkpoints or Kafka; a directory above one is not there; or
            two coordinators could both commit.
        SetupError: Spark, Delta or the executors' Python does not fit.
    """
    if not databricks.is_here():  # which has its own Spark, Delta and log store
        runtime.check_spark(spark.version)
        _check_classes(spark, avro=config.topics.has_avro)
        _check_log_store(spark, config.warehouse)
    _refuse_places_in_nothing(config)
    master = str(spark.sparkContext.master)
    if not is_one_machine(master):
        _refuse_local_places(config, master)
        executors.await_all(spark)
    # A session of CommitLake's own on one machine has this Python, and no task is spent on it.
    if not is_one_machine(master) or databricks.is_here() or spark.sparkContext.pythonExec != sys.executable:
        _check_executors(spark, config)


def _check_classes(spark: SparkSession, *, avro: bool) -> None:
    needed = _NEEDED_CLASSES | (_OF_AVRO if avro else {})
    for what, name in needed.items():
        try:
            load(spark, name)
        except Exception as error:
            packages = (*runtime.packages(), *([runtime.avro_package()] if avro else []))
            msg = (
                f"{what} is not on Spark's class path; start Spark by ./spark-submit.sh, or with --packages "
                f"{','.join(each.partition('?')[0] for each in packages)}"
            )
            raise SetupError(msg) from error


def _check_log_store(spark: SparkSession, warehouse: str) -> None:
    scheme = warehouse.partition(":")[0]
    if scheme not in ("s3", "s3a", "s3n"):
        return
    key = f"spark.delta.logStore.{scheme}.impl"
    store = spark.conf.get(key, None) or _SINGLE_DRIVER
    if store == _SINGLE_DRIVER:
        msg = (
            f"{key}: {store} is not allowed; on S3 it lets two coordinators commit the same version of a table, and "
            "rows are lost; set it to io.delta.storage.S3DynamoDBLogStore, from the package "
            "io.delta:delta-storage-s3-dynamodb of Delta's version, or to another log store with an atomic put"
        )
        raise ConfigError(msg)
    try:
        load(spark, store).getDeclaredFields()  # loads its dependencies, such as the client of DynamoDB
    except Exception as error:
        msg = (
            f"{key}: {store} can't be loaded ({root_reason(error)}); give its jars to Spark with --packages; those of "
            "S3DynamoDBLogStore are io.delta:delta-storage-s3-dynamodb of Delta's version and "
            "com.amazonaws:aws-java-sdk-dynamodb:1.12.262, which hadoop-aws does not bring since Hadoop 3.4"
        )
        raise SetupError(msg) from error


def _refuse_places_in_nothing(config: Config) -> None:
    places = {"warehouse": config.warehouse, "checkpoints": config.checkpoints}
    places |= {"kafka.embedded_dir": config.kafka.embedded_dir} if config.kafka.embedded_dir else {}
    for name, place in places.items():
        if wrong := no_parent(place):
            msg = f"{name}: {wrong}"
            raise ConfigError(msg)


def _refuse_local_places(config: Config, master: str) -> None:
    for name, place in (("warehouse", config.warehouse), ("checkpoints", config.checkpoints)):
        if is_local(place):
            msg = (
                f"{name}: {place} is a directory of the driver's machine, which executors of {master} do not see; give "
                "a place that all of them see, such as hdfs:// or s3a://, or use the master local[*]"
            )
            raise ConfigError(msg)
    if config.kafka.is_embedded:
        msg = (
            f"kafka.bootstrap_servers: 'embedded' is not allowed with the master {master}: executors do not reach a "
            "broker on the driver's loopback; name a broker's host:port, or use the master local[*]"
        )
        raise ConfigError(msg)


def _check_executors(spark: SparkSession, config: Config) -> None:
    own = executors.look()
    try:
        found = executors.look_around(spark)
    except Exception as error:  # of Spark, of py4j, or of what the tasks import
        raise _no_python(own, root_reason(error)) from error
    for look in found:
        if look.versions != own.versions:
            raise _no_python(own, f"{look.host} has {dict(look.versions)}")
    loopback = [address for address in config.kafka.bootstrap_servers.split(",") if _is_loopback(address)]
    elsewhere = sorted({look.host for look in found} - {own.host})
    if loopback and elsewhere:
        msg = (
            f"kafka.bootstrap_servers: {', '.join(loopback)} is a loopback address, and executors run on "
            f"{', '.join(elsewhere)}, where it is another machine; give an address that all of them reach"
        )
        raise ConfigError(msg)


def _no_python(own: executors.Look, reason: str) -> SetupError:
    return SetupError(
        f"the executors can't run this CommitLake: {reason}; the driver has {dict(own.versions)}, and executors need "
        "the same; let ./spark-submit.sh ship it, or name a Python that has it, with --conf spark.pyspark.python=..., "
        "or by PYSPARK_PYTHON before Spark starts"
    )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
