"""`commitlake.doctor`: whether a coordinator can start in a session, such as a notebook's on Databricks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlake import config as configuration
from commitlake.clients.daemon_pool import DaemonPool
from commitlake.config import Conf, Config, databricks
from commitlake.config.keys import OPTIONS_KEY
from commitlake.config.locations import CATALOG, is_local, local_path
from commitlake.config.secret_references import is_secret_reference, resolve
from commitlake.config.terminal import counted
from commitlake.errors import CommitLakeError, ConfigError, SetupError, WarehouseError, installed_by, root_reason
from commitlake.kafka import clock_skew
from commitlake.kafka.admin_client import connect
from commitlake.protocol.clock import now_ms
from commitlake.spark import cluster, jvm, runtime
from commitlake.spark.files import FileSystem
from commitlake.spark.session import is_classic, require_classic
from commitlake.tools.findings import Diagnosis, show

_WAIT_S = 50.0
_JAAS = "sasl.jaas.config"
_NEEDED = ("delta", "kafka", "numpy", "pandas", "pyarrow")
_OF_RULES = ("duckdb", "deltalake", "sqlglot")


class _Kind(NamedTuple):
    """An object of Unity Catalog: the rights on it that are needed, and where its `information_schema` tells them."""

    what: str
    rights: tuple[str, ...]
    held: str
    owned: str
    owner: str
    columns: tuple[str, ...]


_SCHEMA = _Kind(
    "SCHEMA", ("USE SCHEMA", "CREATE TABLE", "SELECT", "MODIFY"),
    "schema_privileges", "schemata", "schema_owner", ("schema_name",),
)  # fmt: skip
_VOLUME = _Kind(
    "VOLUME", ("READ VOLUME", "WRITE VOLUME"),
    "volume_privileges", "volumes", "volume_owner", ("volume_schema", "volume_name"),
)  # fmt: skip
Check = Callable[[SparkSession, Config], str]
"""Returns what it found; raises an error, with what to do, where something is missing."""


def doctor(spark: SparkSession, conf: Conf) -> bool:
    """Print whether a coordinator can start in this session, and what is missing, one line each, within a minute.

    Nothing is written, and no secret is shown.

    Args:
        spark: the session, also one of Spark Connect, where only tables can be read.
        conf: the coordinator's configuration, its path, or its keys and values.

    Returns:
        Whether nothing is missing.
    """
    return show(examine(spark, configuration.of(conf)), "missing")


def examine(spark: SparkSession, config: Config) -> list[Diagnosis]:
    """Run all checks that this kind of session allows, side by side; one that does not end in time is a finding."""
    checks: list[Check] = [_runtime, _access, _packages, _secrets, _kafka, _clock, _tables]
    checks += [_classes, _checkpoints, _cluster] if is_classic(spark) else []
    pool, until = DaemonPool(len(checks), "commitlake-doctor"), time.monotonic() + _WAIT_S
    begun = [(check, pool.submit(_found, check, spark, config)) for check in checks]
    pool.shutdown(wait=False)
    found = []
    for check, future in begun:
        try:
            found.append(future.result(max(0.0, until - time.monotonic())))
        except TimeoutError:
            told = f"no answer within {_WAIT_S:.0f} s; does the network let this machine through?"
            found.append(Diagnosis(_name(check), False, told))
    return found


def _name(check: Check) -> str:
    return check.__name__.removeprefix("_")


def _found(check: Check, spark: SparkSession, config: Config) -> Diagnosis:
    try:
        return Diagnosis(_name(check), True, check(spark, config))
    except CommitLakeError as error:
        return Diagnosis(_name(check), False, str(error))
    except Exception as error:  # of Spark, py4j, a file system
        return Diagnosis(_name(check), False, root_reason(error))


def _runtime(spark: SparkSession, config: Config) -> str:
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    if not databricks.is_here():
        runtime.check_spark(spark.version)
        return f"Spark {spark.version}, {python}"
    text = f"Databricks {databricks.version()} with Spark {spark.version}, {python}"
    if not spark.version.startswith("4."):
        msg = f"{text}; CommitLake needs Spark 4: choose a runtime from 17.0 on"
        raise SetupError(msg)
    return text


def _access(spark: SparkSession, config: Config) -> str:
    require_classic(spark)
    return "a classic session"


def _packages(spark: SparkSession, config: Config) -> str:
    needed = [*_NEEDED, *(_OF_RULES if config.checks else ()), *(["prometheus_client"] if config.metrics.port else ())]
    lacking = [name for name in needed if find_spec(name) is None]
    if lacking:
        msg = f"the Python modules {', '.join(lacking)} are not there; install them with {installed_by('all')}"
        raise SetupError(msg)
    return f"{', '.join(needed)} are there"


def _secrets(spark: SparkSession, config: Config) -> str:
    given = {f"{OPTIONS_KEY}.{name}": value for name, value in config.kafka.options.items()}
    given["catalog.token"] = config.catalog.token
    given |= {f"checks.{group}.{name}": value for group, rule in config.checks.items() for name, value in rule.items()}
    named = {key: str(value) for key, value in given.items() if is_secret_reference(str(value))}
    found = dict(_resolved(named))
    if wrong := [str(value) for value in found.values() if isinstance(value, ConfigError)]:
        raise ConfigError("; ".join(wrong))
    jaas = found.get(f"{OPTIONS_KEY}.{_JAAS}", config.kafka.options.get(_JAAS, ""))
    if databricks.is_here() and str(jaas).startswith("org.apache.kafka."):
        msg = f"{OPTIONS_KEY}.{_JAAS}: Databricks has renamed Kafka's classes; write kafkashaded. before the class"
        raise ConfigError(msg)
    return f"resolved: {', '.join(named)}" if named else "none is named"


def _resolved(named: Mapping[str, str]) -> Iterator[tuple[str, str | ConfigError]]:
    for key, value in named.items():
        try:
            yield key, resolve(key, value)
        except ConfigError as error:
            yield key, error


def _classes(spark: SparkSession, config: Config) -> str:
    """Java's classes that this session shows, and what happens without the others."""
    uses = {use: [name for name in use.names if not _shows(spark, name)] for use in jvm.USES}
    hidden = {use: names for use, names in uses.items() if names}
    needed = [] if config.is_in_catalog and databricks.volume(config.checkpoints) else hidden.get(jvm.FILES, [])
    if needed:
        msg = f"{', '.join(needed)} is hidden; keep tables in a catalog, and checkpoints in a volume"
        raise SetupError(msg)
    told = [f"without {names[0]} {use.without}" for use, names in hidden.items() if use.without]
    return "; ".join(told) or f"all {sum(len(use.names) for use in jvm.USES)} are shown"


def _shows(spark: SparkSession, name: str) -> bool:
    try:
        jvm.java(spark, name)
    except Py4JError:
        return False
    return True


def _cluster(spark: SparkSession, config: Config) -> str:
    cluster.check(spark, cluster.resolved(spark, config))
    return f"master {spark.sparkContext.master}"


def _kafka(spark: SparkSession, config: Config) -> str:
    if config.kafka.is_embedded:
        return "embedded: a broker in the driver, for a try; its records go with the cluster's disk"
    with connect(config) as client:
        return f"{config.kafka.bootstrap_servers}: {counted(len(client.describe_cluster()['brokers']), 'broker')}"


def _clock(spark: SparkSession, config: Config) -> str:
    if config.kafka.is_embedded:
        return "that of the embedded broker"
    newest, now = clock_skew.newest_ms(config), now_ms()
    if newest is None:
        return "Kafka has no record yet to compare this machine's clock with"
    if newest > now + clock_skew.TOLERATED_MS:
        late_s = (newest - now) / 1_000
        msg = f"this machine's clock is at least {late_s:.0f} s behind Kafka's; set the clocks of both by NTP"
        raise SetupError(msg)
    return f"no record of Kafka is of the future; the newest one came {(now - newest) / 1_000:.0f} s ago"


def _tables(spark: SparkSession, config: Config) -> str:
    if config.is_in_catalog:
        return _schema(spark, config.warehouse.removeprefix(CATALOG))
    return _place(spark, config.warehouse) if is_classic(spark) else f"{config.warehouse}: not looked at from here"


def _schema(spark: SparkSession, schema: str) -> str:
    try:
        found = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema}").collect()}
        if "epochs" in found:
            spark.table(f"{schema}.epochs").limit(1).collect()
    except PySparkException as error:
        remedy = f"CREATE SCHEMA {schema}, or let its owner grant {', '.join(_SCHEMA.rights)} on it"
        msg = f"{schema}: {root_reason(error)}; {remedy}"
        raise WarehouseError(msg) from error
    return f"{schema}: {counted(len(found), 'table')}{_rights(spark, _SCHEMA, schema)}"


def _checkpoints(spark: SparkSession, config: Config) -> str:
    return _place(spark, config.checkpoints)


def _place(spark: SparkSession, place: str) -> str:
    """Whether a directory, a volume, or a URI can be reached."""
    if (volume := databricks.volume(place)) is not None:
        root = databricks.volume_of(volume)
        name = ".".join(root.parts[-3:])
        if not root.is_dir():
            remedy = f"CREATE EXTERNAL VOLUME {name} LOCATION '...', or let its owner grant {', '.join(_VOLUME.rights)}"
            msg = f"{place}: there is no volume {name} here; {remedy}"
            raise WarehouseError(msg)
        return f"{place}{_rights(spark, _VOLUME, name)}"
    if not is_local(place):
        FileSystem(spark, place).names("")
        return f"{place} can be listed"
    directory = local_path(place).absolute()
    there = directory if directory.exists() else directory.parent
    if not os.access(there, os.W_OK | os.X_OK):
        msg = f"{place}: {there} is not there, or this user may not write to it; make it, or allow it"
        raise WarehouseError(msg)
    return f"{place} on this machine"


def _rights(spark: SparkSession, kind: _Kind, name: str) -> str:
    """This user's rights by Unity Catalog; empty where it lists none, as for the owner of all catalogs.

    Raises:
        WarehouseError: it lists some, and not all that are needed.
    """
    catalog, *own = name.split(".")
    where = " AND ".join(f"{column} = '{part}'" for column, part in zip(kind.columns, own, strict=False))
    mine = "({0} = current_user() OR is_account_group_member({0}))".format
    views = f"{catalog}.information_schema"
    try:
        rows = spark.sql(f"""
        SELECT privilege_type AS held FROM {views}.{kind.held} WHERE {where} AND {mine("grantee")}
        UNION ALL SELECT 'ALL PRIVILEGES' FROM {views}.{kind.owned} WHERE {where} AND {mine(kind.owner)}""").collect()
    except PySparkException:  # another catalog has no such views
        return ""
    held = {str(row["held"]).replace("_", " ") for row in rows}
    lacking = [right for right in kind.rights if right not in held]
    if held and lacking and "ALL PRIVILEGES" not in held:
        msg = f"{name}: this user lacks {', '.join(lacking)}; let the owner grant that ON {kind.what} {name}"
        raise WarehouseError(msg)
    return ", and all rights" if held else ""
