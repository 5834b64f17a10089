"""The notebook, run as it is, on real tables."""

from __future__ import annotations

import ast
import runpy
import socket
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.support.polling import wait_for

import commitlake
from commitlake import DefaultMQProducer, Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commitlake.kafka.embedded import EmbeddedBroker

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.py"


def test_the_quickstart_shows_each_end_of_a_transaction_and_stops_what_it_started(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUICKSTART_PLACE", str(tmp_path))
    monkeypatch.setenv("QUICKSTART_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = runpy.run_path(str(NOTEBOOK))

    counts = names["ends"].groupby(["state", "reason"]).size().to_dict()
    assert counts == {
        ("COMMITTED", "DIRECT"): 28,
        ("COMMITTED", "CHECK"): 4,
        ("ROLLED_BACK", "DIRECT"): 4,
        ("DISCARDED", "CHECK_MAX"): 4,
    }
    visible = {row["keys"] for row in spark.read.format("delta").load(f"{tmp_path}/warehouse/topics/orders").collect()}
    with sqlite3.connect(names["database"]) as db:
        assert visible == {row[0] for row in db.execute("SELECT id FROM orders")}
    assert (tmp_path / "quickstart.png").read_bytes().startswith(b"\x89PNG")
    assert not any(query.isActive for query in names["coordinator"]._queries)


def test_a_session_that_is_there_needs_nothing_but_the_defaults(spark: SparkSession, tmp_path: Path) -> None:
    with commitlake.start(spark, {name: str(tmp_path / name) for name in ("warehouse", "checkpoints")}) as running:
        servers = running.config.kafka.bootstrap_servers
        with DefaultMQProducer("shop", bootstrap_servers=servers) as producer:
            producer.send(Message("news", "opened"))
        table = f"{tmp_path}/warehouse/topics/news"
        wait_for(lambda: DeltaTable.is_deltatable(table) and DeltaTable(table).count() == 1, 60)
    with socket.socket() as probe:  # its broker is gone
        assert probe.connect_ex(("127.0.0.1", int(servers.rpartition(":")[2]))) != 0


def test_the_notebook_is_in_databricks_source_form() -> None:
    text = NOTEBOOK.read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------\n")
    assert len(cells) > 10
    for cell in cells:
        is_prose = "# MAGIC" in cell
        assert is_prose != bool(ast.parse(cell).body), cell
