"""The notebook, run as it is, on real tables."""

from __future__ import annotations

import ast
import runpy
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


def test_the_notebook_is_in_databricks_source_form() -> None:
    text = NOTEBOOK.read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------\n")
    assert len(cells) > 10
    for cell in cells:
        is_prose = "# MAGIC" in cell
        assert is_prose != bool(ast.parse(cell).body), cell
