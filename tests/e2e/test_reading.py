"""The notebooks that read, run as they are on Spark Connect, as Databricks runs them without a classic cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster import free_port
from tests.support.killing import ENVIRONMENT, ROOT, kill
from tests.support.lake import Lake
from tests.support.polling import WAIT_S, patience, wait_for

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.spark import runtime, session
from commitlake.tables import Warehouse

SHOWN = {
    "reading": ["orders", "paid", "orders: 1 rows up to batch"],
    "ledger": ["COMMITTED", "CHECK_MAX", "DISCARDED", "half message"],
    "operations": ["all is well", "true"],
}
"""Notebooks, and what stands in their output."""


def accepts(port: int) -> bool:
    """Whether somebody listens; the server logs nothing above INFO when it does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """A Spark Connect server, which comes with pyspark; yields its address."""
    port = free_port()
    command, environment = runtime.spark_submit()
    settings = session.submit_settings("local[2]", short_lived=True) | {"spark.connect.grpc.binding.port": str(port)}
    pairs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]", *pairs]
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(lambda: accepts(port), 120, log.read_text)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        kill(server)


@pytest.fixture(scope="module")
def story(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A warehouse with an order that was committed and one that was discarded."""
    with Lake(broker.bootstrap_servers, "reading.", tmp_path_factory.mktemp("reading")) as lake:
        lake.commit("paid")
        lake.half("lost")
        lake.run(spark)
        lake.run(spark, transaction_timeout="0s", transaction_check_max=0)
        yield str(lake.warehouse)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        yield stack.enter_context(connect_server(tmp_path_factory.mktemp("connect") / "log"))


@pytest.mark.parametrize(
    "notebook", [pytest.param(name, marks=[] if name == "operations" else pytest.mark.soak) for name in SHOWN]
)
def test_a_notebook_runs_without_a_classic_session(notebook: str, server: str, story: str, tmp_path: Path) -> None:
    own = {"SPARK_REMOTE": server, "READ_WAREHOUSE": story}
    done = subprocess.run(
        [sys.executable, ROOT / "notebooks" / f"{notebook}.py"],
        env={**ENVIRONMENT, **own}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [text for text in SHOWN[notebook] if text not in done.stdout] == [], done.stdout


def test_a_warehouse_without_a_topic_says_so_without_a_classic_session(
    spark: SparkSession, server: str, tmp_path: Path
) -> None:
    Warehouse(spark, str(tmp_path)).create()
    code = f"""
from pyspark.sql import SparkSession
from commitlake.tables import Warehouse
print(Warehouse(SparkSession.builder.getOrCreate(), "{tmp_path}").topics())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**ENVIRONMENT, "SPARK_REMOTE": server}, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "set()\n", done.stderr


JOB = """
import json, sys, time
import pyspark.errors
from pyspark.sql import SparkSession
import commitlake

spark, given = SparkSession.builder.getOrCreate(), json.loads(sys.argv[1])
conf, place = given["conf"], given["place"]
assert type(spark).__module__.startswith("pyspark.sql.connect")

with commitlake.delta_transaction(spark, conf, "nightly") as tx:
    tx.send(commitlake.Message("daily", "of a transaction"))
    tx.append(spark.range(3), f"{place}/orders")
    tx.append(spark.range(3), "spark_catalog.default.of_connect")

send = commitlake.sink(conf, "hourly", name="hourly", group="nightly", body="CAST(id AS STRING)")
rows = spark.readStream.format("delta").load(f"{place}/orders").writeStream.foreachBatch(send)
query = rows.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
assert query.awaitTermination(120) and query.exception() is None, query.exception()

seen, until = [], time.time() + given["wait"]
while len(seen) < 4 and time.time() < until:
    time.sleep(1)
    try:
        topics = [commitlake.read_topic(spark, conf, topic) for topic in ("daily", "hourly")]
        seen = [bytes(row.body).decode() for each in topics for row in each.select("body").collect()]
    except pyspark.errors.AnalysisException as error:  # there is no table yet
        print(error, file=sys.stderr)
print(sorted(seen))
done = commitlake.receipts(conf, "hourly", group="points")
done.done(commitlake.read_topic(spark, conf, "hourly"))
print(spark.read.format("delta").load(f"{place}/receipts/receipts").where("state = 'DONE'").count())
print(commitlake.doctor(spark, conf))
"""


@pytest.mark.long
def test_jobs_with_delta_tables_run_without_a_classic_session(
    server: str, delta_log_lake: Lake, tmp_path: Path
) -> None:
    conf = {**delta_log_lake.settings, "receipts": f"{tmp_path}/receipts"}
    made = f"CREATE TABLE of_connect (id BIGINT) USING delta LOCATION '{tmp_path}/named'"
    given = {"conf": conf, "place": str(tmp_path), "wait": WAIT_S * patience()}
    code = JOB.replace("with commitlake", f"spark.sql({made!r})\nwith commitlake", 1)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(given)],
        env={**ENVIRONMENT, "SPARK_REMOTE": server}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    seen, receipts, *told, ready = done.stdout.splitlines()
    assert (seen, receipts) == ("['0', '1', '2', 'of a transaction']", "3"), done.stderr
    assert (told[0], ready) == ("missing  verdict      1 of 7 needs a look: access", "False")
    assert "use a cluster with dedicated access mode" in told[2]


def test_a_coordinator_says_at_once_that_it_needs_a_classic_session(server: str, tmp_path: Path) -> None:
    code = """
from pyspark.sql import SparkSession
import commitlake
commitlake.start(SparkSession.builder.getOrCreate(), {"warehouse": "/tmp/never"})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**ENVIRONMENT, "SPARK_REMOTE": server}, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "use a cluster with dedicated access mode" in done.stderr
