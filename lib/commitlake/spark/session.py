"""Spark sessions: this file has every Spark setting of CommitLake, with its reason."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commitlake.config import Config, databricks, object_store
from commitlake.config.locations import CATALOG, is_local
from commitlake.config.values import LARGEST_MESSAGE
from commitlake.errors import SetupError
from commitlake.spark import class_archive, cluster_mode, given, preflight, runtime

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rules of the protocol depend on these; nobody may change them.
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    # A Kafka record may repeat a header; the last one counts.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    # Coordination runs only when it gets rows: `processAllAvailable` returns when they are processed.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A nullable or too wide number must fail, never be rounded or wrapped.
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
}
# May be set on a session that runs already, such as that of a notebook; the operator's values win.
TUNING = {
    # Plans are small and many: planning them again costs more than it saves (0.2 s of a 0.6 s Delta append).
    "spark.sql.adaptive.enabled": "false",
    # Spark takes the compressed size of a cached frame for its size, and runs out of memory; joins give hints instead.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # A batch is cached for seconds: to choose a compression takes a seventh of landing's time, and only saves memory.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A coordinator runs up to 86 400 rounds a day; only what a report needs is kept.
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    # Delta's state of a table here is small: 50 tasks to rebuild it, the default, are 48 too many.
    "spark.databricks.delta.snapshotPartitions": "2",
    # To check its counts Delta rebuilds the state of a table of up to 50 files at each commit where Java's time zone
    # is not UTC: 0.45 s instead of 0.13 s. The reason is times in partition columns, and no table here has any.
    "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
    # Spark's default, INT96, has no statistics, so a question about the last hour would read all rows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # How often coordination polls for rows. Idle, each poll lists the log of its input: 0.06 cores with 50 ms, 0.03
    # with 100. Landing polls within its trigger of 100 ms; with a pause as long, Spark warns at each poll.
    "spark.sql.streaming.pollingDelay": "80ms",
}
# For joins with all of history: tens of millions of keys, or none. Sorted in two partitions, as batches are, 20 million
# do not fit a heap of 2 GiB. Where there are few keys, adaptive execution merges the partitions.
HISTORY_SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "128",
}
LARGEST_FILE = 128 << 20
"""Bytes of a compacted file. With Delta's 1 GiB for both sizes each run would rewrite up to a gigabyte of a queue."""


def file_sizes(largest: int) -> dict[str, str]:
    """Settings of a compaction that makes files of so many bytes at most; a file of half of that stays as it is."""
    sizes = {"minFileSize": max(1, largest // 2), "maxFileSize": max(1, largest)}
    return {f"spark.databricks.delta.optimize.{name}": str(size) for name, size in sizes.items()}


# Only for maintenance.
MAINTENANCE_SETTINGS = {
    # The shuffles here are of files, not of rows. With the 128 partitions for history a VACUUM that finds nothing takes
    # 11 s of CPU, with 2 it takes 2.3 s. A run has 16 of them.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2",
    **file_sizes(LARGEST_FILE),
    # One file at a time: a task that writes 128 MiB takes half a minute, and two would hold both of two cores. Rounds
    # of 4 s took 30 s then.
    "spark.databricks.delta.optimize.maxThreads": "1",
    # Delta lists a directory in 10 000 tasks by default: a VACUUM of a small table took minutes.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # The configuration says how long files are kept; nobody reads the coordinator's own files late.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Ids and keys are as good as random, so no statistics help to find one among 20 million. Compacted files get Bloom
    # filters for them, as large as their rows need: 1.5 MiB for a million, with one false positive in a hundred.
    **{f"parquet.bloom.filter.enabled#{name}": "true" for name in ("transaction_id", "message_id", "keys")},
    "parquet.bloom.filter.adaptive.enabled": "true",
    "parquet.bloom.filter.max.bytes": str(2 << 20),
}
# Settings that Delta requires of any session.
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# Must be set before the JVM starts.
STATIC_SETTINGS = {
    **DELTA_SETTINGS,
    "spark.ui.showConsoleProgress": "false",
    # By default the tasks of a round wait for all tasks that maintenance has queued.
    "spark.scheduler.mode": "FAIR",
    # Landing and coordination run some 300 generated classes a round. With the default of 100, each is generated and
    # compiled again every time: 65 classes a second, and half a core for Java's compiler.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # By default PySpark calls the JVM three more times for each column of an expression, to report where it was made.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A client of HDFS that closes a file asks whether its last block has been reported, and sleeps 400 ms if not:
    # nearly always. A round, which writes some 40 files, took 9 s instead of 5. 10 doublings of 10 ms take as long as
    # Hadoop's own 5 of 400 ms.
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "10",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|credential|keystore[.]key",
}
# A machine of a few cores: more shuffle partitions only make more tasks, files and state stores.
LOCAL_SETTINGS = {
    # Driver and executors in one heap: enough for a million open transactions.
    "spark.driver.memory": "2g",
    # By default each stage allocates arrays of 4 MiB for its tasks, each aggregation and sort one of 32 or 64 MiB.
    # Java's collector gives such arrays regions of their own, and marks the whole heap for nearly each, 154 times in
    # four minutes; with these settings (pages of 1 MiB) and `_ONE_HEAP_OPTIONS` 8 times.
    "spark.broadcast.blockSize": "256k",
    "spark.buffer.pageSize": "2m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Hadoop's own class starts `chmod` for each new file: 60 processes an append, 8 ms each. This one calls Java.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    # Delta's default class renames through Hadoop's older interface, which starts 10 processes for each commit, one
    # after the other: 70 a round. This one calls Java, under a lock of its own.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # Loopback, whatever the machine's name resolves to.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# A query with a wide plan that is stopped in the middle overflows the default stack of 1 MiB.
# By default Java never compiles a method above 8 000 bytecodes, and Spark makes one of each wide plan. Interpreted, the
# records of `half` took 4 times as long to classify and those of `op` 3.5 times (see docs/benchmarks.md).
# A body of Avro says how long its strings and lists are. By default Java would make room for 2 GiB of them, and end.
# The optimising compiler waits five times longer than by default. Without that it took a third of all CPU in the first
# minutes, since most of the code that it compiled was soon replaced. A round took 4.7 s of CPU instead of 3.4 s.
_JAVA_OPTIONS = (
    f"{runtime.LANGUAGE} -Xss8m -XX:-DontCompileHugeMethods -XX:Tier4InvocationThreshold=25000 "
    "-XX:Tier4MinInvocationThreshold=3000 -XX:Tier4CompileThreshold=75000 -XX:Tier4BackEdgeThreshold=200000 "
    f"-Dorg.apache.avro.limits.string.maxLength={LARGEST_MESSAGE} "
    f"-Dorg.apache.avro.limits.bytes.maxLength={LARGEST_MESSAGE} "
    "-Dorg.apache.avro.limits.collectionItems.maxLength=1000000"
)
# The optimising compiler pays off only after minutes: without it the first batches take 8, 5, 2 s, not 11, 10, 4 s.
# Without it Java reserves 48 MiB for code, which the plans of some minutes fill: then Java compiles nothing any more.
# Java's default collector takes one tenth of all CPU in these minutes, most of it for concurrent marking, which each
# large array starts. The parallel collector takes 3 in 100.
_SHORT_LIVED_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC"
_ONE_HEAP_OPTIONS = "-XX:G1HeapRegionSize=8m"
# Executors compile and run the same code as a driver that is alone.
CLUSTER_SETTINGS = {"spark.executor.extraJavaOptions": _JAVA_OPTIONS}


def build(
    config: Config | None = None,
    master: str | None = None,
    app_name: str = "commitlake",
    short_lived: bool = False,
) -> SparkSession:
    """Return the Spark session: a new one with all it needs, or the one that runs (under spark-submit, in a notebook).

    Args:
        config: says where tables and checkpoints are; None for local ones.
        master: Spark's master; None for what spark-submit or the environment says, else `local[*]`.
        app_name: shown in Spark's UI.
        short_lived: whether the application ends within minutes, so that a quick start beats top speed.

    Raises:
        SetupError: no fitting Java, jars that cannot be resolved, or a session of Spark Connect.
    """
    from pyspark.sql import SparkSession

    from commitlake.spark import jvm

    builder = SparkSession.builder.appName(app_name)
    if not _has_jvm():
        master = master or os.environ.get("MASTER") or "local[*]"
        _let_workers_import_commitlake()
        os.environ.update(local_environment(master))
        has_avro = config is not None and config.topics.has_avro
        for name, value in submit_settings(master, short_lived, avro=has_avro).items():
            builder = builder.config(name, value)
        builder = builder.master(master)
    spark = _with_own_interrupt_handler(builder.getOrCreate)
    require_classic(spark)
    jvm.remember(spark)
    apply_settings(spark, config)
    return spark


def session() -> SparkSession:
    """Return a Spark session with Delta: that of a notebook or of Spark Connect, else a new local one.

    Raises:
        SetupError: no fitting Java, or jars that cannot be resolved.
    """
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if "SPARK_REMOTE" in os.environ or databricks.is_here():
        return SparkSession.builder.getOrCreate()
    return there or build(short_lived=True)


def is_classic(spark: SparkSession) -> bool:
    """Whether a session's JVM is within reach; that of Spark Connect is not."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def require_classic(spark: SparkSession) -> None:
    """Rejects a session of Spark Connect, whose JVM is out of reach.

    Raises:
        SetupError: it is one.
    """
    if not is_classic(spark):
        msg = (
            "this is a session of Spark Connect (on Databricks: serverless, or a cluster of standard access mode); the "
            "coordinator needs a classic one: use a cluster with dedicated access mode; tables can be read here"
        )
        raise SetupError(msg)


def apply_settings(spark: SparkSession, config: Config | None = None, more: Mapping[str, str] | None = None) -> None:
    """Apply the settings that may be set on a running session, and `more`; all others are up to the cluster.

    The configuration says where tables and checkpoints are; without one they are local.
    """
    from pyspark.errors import PySparkException

    places = ("", "") if config is None else (config.warehouse, config.checkpoints)
    settings = TUNING | _of_places(*places, spark.version)
    settings["spark.sql.shuffle.partitions"] = _shuffle_partitions(spark, config)
    chosen = given.settings(given.from_environment())
    settings |= {name: chosen[name] for name in settings if name in chosen}
    for name, value in {**settings, **(more or {}), **REQUIRED}.items():
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            if name in REQUIRED or not databricks.is_here():
                raise
            log.debug("Databricks keeps its own %s: %s", name, error)


def _shuffle_partitions(spark: SparkSession, config: Config | None) -> str:
    """A task for each core, but no more than queues: each is a state store, opened and committed in every round."""
    context = spark.sparkContext
    if is_one_machine(str(context.master)) or config is None:
        return LOCAL_SETTINGS["spark.sql.shuffle.partitions"]
    return str(max(2, min(config.kafka.queues, context.defaultParallelism)))


def _of_places(warehouse: str, checkpoints: str, version: str) -> dict[str, str]:
    """Settings that depend on where tables and checkpoints are: an object store charges for each request.

    Without Delta's checksum of each version a commit takes 26 requests in place of 39. No reader here asks for one, and
    Delta's own transactions derive it in memory. An idle input is polled twice a second.

    On a local file system Hadoop's own file manager starts a process for every file to set its permissions; this one
    does not.
    """
    settings = {}
    if _is_object_store(warehouse) and not databricks.is_here():
        settings["spark.databricks.delta.writeChecksumFile.enabled"] = "false"
    if _is_object_store(checkpoints):
        settings["spark.sql.streaming.pollingDelay"] = "500ms"
    if is_local(checkpoints):
        package = "org.apache.spark.sql.execution.streaming" + ("" if version.startswith("4.0.") else ".checkpointing")
        manager = f"{package}.FileSystemBasedCheckpointFileManager"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = manager
    return settings


def _is_object_store(place: str) -> bool:
    return not is_local(place) and not place.lower().startswith((CATALOG, "hdfs:", "viewfs:"))


def beside(spark: SparkSession, config: Config, more: Mapping[str, str] | None = None) -> SparkSession:
    """Return another session of the same application with the settings of CommitLake; `spark` stays as it is."""
    own = spark.newSession()
    apply_settings(own, config, more)
    return own


def submit_settings(
    master: str, short_lived: bool = False, *, avro: bool = False, travels: bool = False
) -> dict[str, str]:
    """Return the settings that a new JVM starts with, jars included; with `avro` that of Spark's functions for it.

    With `travels` they are those of a driver on the cluster.

    Raises:
        SetupError: no fitting Java, jars that cannot be resolved, or a machine that lacks something (`preflight`).
    """
    own = LOCAL_SETTINGS | given.settings(given.from_environment()) if is_one_machine(master) else chosen()
    preflight.check(own, is_one_machine=is_one_machine(master))
    java, logs = runtime.java(), cluster_mode.LOG_SETTINGS
    options = [
        _JAVA_OPTIONS,
        "" if travels else runtime.home(),
        f"-Dlog4j2.configurationFile={logs.name if travels else logs.as_uri()}",
        _SHORT_LIVED_OPTIONS if short_lived else "",
    ]
    settings = {**REQUIRED, **TUNING, **STATIC_SETTINGS, **object_store.spark_settings()}
    more = _beside_spark([runtime.avro_package()]) if avro else []
    if is_one_machine(master):
        jars = jars_of_one_machine()
        # At the end: Java takes classes from its archive if that was made with the jars before it.
        settings |= LOCAL_SETTINGS | {"spark.driver.extraClassPath": os.pathsep.join([*jars, *more])}
        options += [_ONE_HEAP_OPTIONS, *class_archive.java_options(java, jars)]
    else:
        settings |= CLUSTER_SETTINGS | {"spark.jars": ",".join([*_beside_spark(runtime.packages()), *more])}
    return settings | {"spark.driver.extraJavaOptions": " ".join(filter(None, options))}


def local_environment(master: str) -> dict[str, str]:
    """Environment of a new JVM: without an address Java looks up the machine's name, which may not resolve."""
    return {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if is_one_machine(master) else {}


def is_one_machine(master: str) -> bool:
    """Whether driver and executors share a machine, with its disks and its loopback addresses."""
    return master.startswith("local") and not master.startswith("local-cluster")


def is_cluster_mode(master: str, arguments: Sequence[str]) -> bool:
    """Whether the operator wants this driver on the cluster; never one whose output and exit code are an answer."""
    return "run" in arguments[:1] and not is_one_machine(master) and chosen().get(cluster_mode.MODE) == "cluster"


def chosen() -> dict[str, str]:
    """The operator's settings: those of `COMMITLAKE_SPARK_ARGS`, above those of Spark's own file."""
    return {**given.defaults(runtime.spark_home()), **given.settings(given.from_environment())}


def jars_of_one_machine() -> list[str]:
    """Jars for the class path: Java's archive has classes of the class path only.

    Hadoop, too, looks for its file system before any jar of `spark.jars` is added.
    """
    return _beside_spark((*runtime.packages(), runtime.LOCAL_FILES_PACKAGE))


def _beside_spark(packages: Sequence[str]) -> list[str]:
    """The jars of packages that Spark itself lacks: it has 25 of 43, and each jar goes to every executor."""
    jars = runtime.jars(packages)
    own = {_without_version(jar.stem) for jar in (runtime.spark_home() / "jars").glob("*.jar")}
    # Ivy names a jar <group>_<artifact>-<version>.
    return [jar for jar in jars if _without_version(Path(jar).stem.partition("_")[2]) not in own]


def _without_version(name: str) -> str:
    return re.sub(r"-\d[\w.-]*$", "", name)


def _with_own_interrupt_handler(create: Callable[[], SparkSession]) -> SparkSession:
    """Keep the handler of SIGINT: a new SparkContext sets one that cancels all jobs, in the middle of a batch."""
    handler = signal.getsignal(signal.SIGINT)
    spark = create()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    return spark


def _has_jvm() -> bool:
    """Whether there is a session already; that of Spark Connect is refused later, in words."""
    from pyspark import SparkContext

    is_given = databricks.is_here() or "PYSPARK_GATEWAY_PORT" in os.environ
    return is_given or SparkContext._gateway is not None


def _let_workers_import_commitlake() -> None:
    """Put this package on the path of Spark's Python workers, which run the interpreter of this process."""
    library = str(Path(__file__).parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", library)]
    os.environ["PYTHONPATH"] = os.pathsep.join([library, *paths])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
