"""What users run beside a coordinator on a cluster like those of Databricks: jobs, and notebooks as they are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.killing import ROOT
from tests.support.polling import WAIT_S, patience

import commitlake
from commitlake.errors import NoTableError

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
