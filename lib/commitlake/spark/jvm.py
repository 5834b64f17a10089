"""Classes of Spark's JVM, for what PySpark does not offer: only this file calls them by name.

A platform may hide a class, or have renamed it. `USES` says what works then.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


class Use(NamedTuple):
    """The purpose of some classes.

    Attributes:
        names: their whole names.
        without: what happens where one is hidden; empty where nothing works then.
    """

    names: tuple[str, ...]
    without: str = ""


_DELTA = "org.apache.spark.sql.delta"
FILES = Use(("org.apache.hadoop.fs.FileSystem", "org.apache.hadoop.fs.Path", "org.apache.hadoop.io.IOUtils"))
"""Small files beside the tables; not used where tables are in a catalog and checkpoints in a volume."""
APPENDS = Use(
    (
        *("java.lang.Class", "java.util.ArrayList", "java.util.List"),
        *("scala.Option", "scala.jdk.javaapi.CollectionConverters"),
        *("org.apache.spark.sql.SaveMode", "org.apache.spark.sql.SparkSession"),
        *(f"{_DELTA}.DeltaLog", f"{_DELTA}.actions.Action"),
        *(f"{_DELTA}.DeltaOperations$Write", f"{_DELTA}.DeltaOperations$ManualUpdate$"),
    ),
    "Delta's writer appends, which takes some 50 ms more each time",
)
OLD_COMMITS = Use(
    ("scala.None$", "scala.Predef$", f"{_DELTA}.TruncationGranularity$"), "Delta deletes old commits once a day"
)
CONSOLE = Use(
    ("java.io.PrintStream", "java.io.OutputStream", "scala.Console$"), "Delta prints a line for each table it vacuums"
)
USES = (FILES, APPENDS, OLD_COMMITS, CONSOLE)
_LOOKED_UP = (
    *("PythonUtils", "PythonSQLUtils", "functions"),
    *(f"org.apache.spark.sql.{name}" for name in ("functions", "classic.SparkSession", "classic.SparkSession$")),
)


def java(spark: SparkSession, name: str) -> Any:
    """A class by its whole name: step by step, the JVM searches all jars in vain for each part, such as `java`.

    Raises:
        Py4JError: the platform does not show it.
    """
    found: Any = getattr(_of(spark), name)
    if isinstance(found, JavaPackage):  # what py4j does not find it takes for a package
        msg = f"Spark's JVM shows no class {name}"
        raise Py4JError(msg)
    return found


def scala(spark: SparkSession, name: str) -> Any:
    """A singleton of Scala, by the whole name of its class, which ends with `$`.

    Raises:
        Py4JError: the platform does not show it.
    """
    return getattr(java(spark, name), "MODULE$")


def _of(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def hadoop(spark: SparkSession) -> Any:
    """Hadoop's configuration of an application."""
    context: Any = spark.sparkContext._jsc
    return context.hadoopConfiguration()


def load(spark: SparkSession, name: str) -> Any:
    """A class of Spark or of its jars, loaded.

    Raises:
        Exception: it, or what it needs, is not on the class path.
    """
    return java(spark, "org.apache.spark.util.Utils").classForName(name, True, True)


def some_long(spark: SparkSession, number: int) -> Any:
    """An `Option[Long]`: py4j would make an `Integer` of a small number."""
    gateway: Any = spark.sparkContext._gateway
    longs = gateway.new_array(_of(spark).long, 1)
    longs[0] = number
    return scala(spark, "scala.Predef$").wrapLongArray(longs).headOption()


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as PySpark does where it makes frames.

    Spark loads a catalog by the settings of the active session. A pool's thread has none, and knows spark_catalog only.
    """
    own: Any = spark
    own._get_j_spark_session_class(_of(spark)).setActiveSession(own._jsparkSession)


def remember(spark: SparkSession) -> None:
    """Keep the classes that PySpark looks up for nearly every call; at each look-up the JVM searches all jars.

    With this, and without PySpark's debugging of frames, landing's plan is built in 0.56 s instead of 1.84 s. Where a
    platform does not show a class, PySpark goes on without.
    """
    jvm = _of(spark)
    with suppress(Py4JError):
        for name in _LOOKED_UP:
            setattr(jvm, name, getattr(jvm, name))
        # For each Java exception, such as the one that ends the loop over an observation, it looks this up ten times.
        jvm.py4j = jvm.py4j
        jvm.py4j.reflection = jvm.py4j.reflection
        jvm.py4j.reflection.TypeUtil = jvm.py4j.reflection.TypeUtil
