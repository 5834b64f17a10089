"""Each snippet of `docs/how-to/read-topics.md`, run as it stands, on messages that a coordinator has shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.support.lake import Lake

if TYPE_CHECKING:
    from commitlake.kafka.embedded import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-topics.md"
ORDERS = [
    *(("o-1", "ann", 12, "paid"), ("o-2", "bob", 5, "paid"), ("o-1", "ann", 20, "paid"), ("o-3", "ann", 1, "new")),
    (None, "eve", 2, "new"),
]


def snippets() -> dict[str, str]:
    """The snippets by the heading above each; several below one heading follow each other."""
    found: dict[str, str] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if code:
            found[section.splitlines()[0]] = "\n".join(code)
    return found


@pytest.fixture(scope="module")
def lake(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Lake(broker.bootstrap_servers, "page.", tmp_path_factory.mktemp("page")) as lake:
        for number, (keys, customer, amount, tags) in enumerate(ORDERS):
            body = json.dumps({"customer": customer, "amount": amount}).encode()
            lake.op("COMMIT", f"t{number}", lake.half(f"t{number}", keys=keys, tags=tags, body=body))
        lake.run(spark)
        yield lake


@pytest.fixture
def names(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(lake.root)
    return {"spark": spark}


def test_sums_without_spark(names: dict[str, Any]) -> None:
    exec(snippets()["With SQL, without Spark"], names)
    assert dict(names["paid"].fetchall()) == {"ann": 32, "bob": 5}
    assert len(names["frame"]) == 2


def test_sums_and_newest_rows_with_spark(names: dict[str, Any], lake: Lake) -> None:
    local = snippets()["With Spark"].replace('"warehouse/', f'"{lake.warehouse}/')
    exec(local, names)
    assert {(row[0], row[1]) for row in names["paid"].collect()} == {("ann", 32), ("bob", 5)}
    latest = {row["keys"]: row["value"]["amount"] for row in names["latest"].collect()}
    assert latest == {"o-1": 20, "o-2": 5, "o-3": 1, None: 2}


def test_a_table_of_ones_own_is_kept_up_to_date(names: dict[str, Any], lake: Lake, spark: SparkSession) -> None:
    own = f"{lake.root}/lake/orders"
    code = snippets()["Keep a table of your own up to date"]
    for place in ("warehouse", "lake", "checkpoints"):
        code = code.replace(f'"{place}/', f'"{lake.root}/{place}/')
    names["F"] = F  # of the snippet before
    for _ in range(2):  # the second run finds nothing new
        exec(code, names)
        rows = spark.read.format("delta").load(own).collect()
        assert {(row["keys"], row["customer"], row["amount"]) for row in rows} == {
            ("o-1", "ann", 20),
            ("o-2", "bob", 5),
            ("o-3", "ann", 1),
        }


def test_from_point_to_point_each_row_comes_once(spark: SparkSession, lake: Lake) -> None:
    """Of transactions, and of normal messages, which have no batch."""
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    points, found = [-1], list[str]()
    for number in range(3):
        lake.message(f"n{number}", topic="points")
        lake.op("COMMIT", f"p{number}", lake.half(f"p{number}", topic="points"))
        lake.run(spark)
        batches, orders = (pa.Table.from_pylist(lake.rows(name)) for name in ("batches", "topics/points"))
        points.append(max(batches["batch_id"].to_pylist()))
        rows = duckdb.execute(sql, {"last": points[-2], "now": points[-1]}).fetchall()
        assert {row[-1] for row in rows} == {points[-1]}
        found += [row[orders.column_names.index("message_id")] for row in rows]
    assert sorted(found) == sorted(orders["message_id"].to_pylist())
    assert len(found) == 6
