"""docs/how-to/own-topic-tables.md: what an owner does to a topic's table, beside a coordinator and over its restart."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for
from tests.support.topic_table import rest, running

import commitlake
from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import WarehouseError
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.reading.questions.find import find
from commitlake.reading.questions.tables import opened
from commitlake.tools.audit.audit import audit

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-topic-tables.md"
SETTINGS: dict[str, Any] = {
    "topics.schemas": {"orders": {"format": "json", "schema": "id INT"}},
    "topics.to_kafka": {"orders": "out-owner"},
}
OPERATIONS = {
    "OPTIMIZE": ["OPTIMIZE {}"],
    "Z-ORDER": ["OPTIMIZE {} ZORDER BY (stored_at)"],
    "VACUUM": ["VACUUM {}"],
    "a column": ["ALTER TABLE {} ADD COLUMNS (note STRING)"],
    "a default": [
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER TABLE {} ALTER COLUMN note SET DEFAULT 'new'",
    ],
    "a change feed": ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"],
    "a constraint": ["ALTER TABLE {} ADD CONSTRAINT small CHECK (octet_length(body) < 1000)"],
    "UPDATE": [
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'false')",
        "UPDATE {} SET note = 'seen' WHERE message_id = 't1'",
    ],
    "DELETE": ["DELETE FROM {} WHERE message_id = 'n1'"],
}


class Owned:
    """A topic that its owner changes; a consumer, a forwarder and a coordinator go on meanwhile."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake, self.place = spark, lake, lake.warehouse / "topics/orders"
        self.number = 0
        self.consumed: list[tuple[str, Any]] = []
        self._stack = ExitStack()
        self.start()
        self.goes_on()
        messages = commitlake.consume({"warehouse": str(lake.warehouse)}, "orders", group="g", poll="200ms")
        self._reader = ExitStack()
        self._reader.enter_context(running(messages, self._take))

    def start(self) -> None:
        self._stack.enter_context(Coordinator(self.spark, self.lake.configured()).start())

    def stop(self) -> None:
        self._stack.close()

    def close(self) -> None:
        self._reader.close()
        self.stop()

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(f"delta.`{self.place}`"))

    def _take(self, message: commitlake.ReceivedMessage) -> None:
        self.consumed.append((message.message_id, message.value))
        message.done()

    def visible(self) -> Counter[str]:
        return Counter(row["message_id"] for row in self.lake.topic("orders"))

    def send(self, **more: Any) -> set[str]:
        """A committed, a normal and a delayed message; returns their ids."""
        self.number, lake = self.number + 1, self.lake
        names = {kind: f"{kind}{self.number}" for kind in "tnd"}
        given = {"body": json.dumps({"id": self.number}).encode(), "keys": f"k{self.number}", **more}
        lake.op("COMMIT", names["t"], lake.half(names["t"], msg_id=names["t"], **given))
        lake.message(names["n"], topic="orders", **given)
        lake.message(names["d"], topic="orders", delays={"TIMER_DELAY_MS": "1"}, **given)
        return {*names.values()}

    def are_shown(self, names: set[str]) -> None:
        wait_for(lambda: names <= self.visible().keys(), why=self.visible)
        assert {self.visible()[name] for name in names} == {1}

    def goes_on(self) -> None:
        """New messages become visible once, and each reader of the topic gets them."""
        names = self.send()
        self.are_shown(names)
        with opened(str(self.lake.warehouse)) as tables:
            found = find(tables, f"{self.lake.warehouse}_receipts/receipts", f"k{self.number}").to_pylist()
        assert {row["message_id"] for row in found if row["what"] == "visible"} == names
        wait_for(lambda: names <= {str(dict(each.headers)["UNIQ_KEY"], "utf-8") for each in self.kafka()})
        if self.number > 1:
            wait_for(lambda: names <= {name for name, _ in self.consumed}, why=lambda: self.consumed)
            assert [value for name, value in self.consumed if name in names] == [{"id": self.number}] * 3

    def kafka(self) -> list[Any]:
        with self.lake._consumer() as reader:
            return list(read(reader, "out-owner"))


def read(reader: Any, topic: str) -> Iterator[Any]:
    from kafka import TopicPartition

    places = [TopicPartition(topic, number) for number in reader.partitions_for_topic(topic) or ()]
    reader.assign(places)
    reader.seek_to_beginning()
    ends = reader.end_offsets(places)
    while any(reader.position(place) < ends[place] for place in places):
        for records in reader.poll(500).values():
            yield from records


@pytest.fixture(scope="module")
def owned(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owned]:
    with Lake(broker.bootstrap_servers, "owner.", tmp_path_factory.mktemp("owner"), **SETTINGS) as lake:
        made = Owned(spark, lake)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_goes_on_while_the_coordinator_runs(owned: Owned, name: str) -> None:
    for statement in OPERATIONS[name]:
        owned.sql(statement)
    owned.goes_on()
    assert audit(owned.spark, str(owned.lake.warehouse)).is_well


def test_what_each_operation_did_is_there(owned: Owned) -> None:
    rows = {row["message_id"]: row for row in owned.lake.topic("orders")}
    assert rows["t1"]["note"] == "seen"
    assert "n1" not in rows
    assert rows[f"t{owned.number}"]["note"] == "new", "a default holds for what the coordinator writes"
    history = owned.spark.sql(f"DESCRIBE HISTORY delta.`{owned.place}`")
    fed = history.where("operationParameters.properties LIKE '%ChangeData%'").selectExpr("max(version)").collect()[0][0]
    feed = owned.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", fed)
    kinds = Counter(row[0] for row in feed.load(str(owned.place)).select("_change_type").collect())
    assert (kinds["update_postimage"], kinds["delete"]) == (1, 1)
    assert kinds["insert"] >= 3, "what the coordinator appended since"
    with pytest.raises(PySparkException, match=r"(?i)stat"):
        owned.sql("OPTIMIZE {} ZORDER BY (keys)")


def test_a_message_that_breaks_a_constraint_holds_up_all_until_that_goes(
    owned: Owned, caplog: pytest.LogCaptureFixture
) -> None:
    names = owned.send(body=json.dumps({"id": owned.number + 1, "text": "x" * 2_000}).encode())
    wait_for(lambda: "all queries begin again" in caplog.text)
    assert "small" in caplog.text, "the constraint is named"
    owned.sql("ALTER TABLE {} DROP CONSTRAINT small")
    owned.are_shown(names)
    owned.goes_on()


def test_all_goes_on_after_a_restart_and_from_another_disk(owned: Owned, tmp_path: Path) -> None:
    owned.stop()
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(snippet.replace("`/path/to/warehouse/", f"`{owned.lake.warehouse}/"), {})
    assert DeltaTable(owned.place).history(1)[0]["operation"] == "OPTIMIZE"
    moved = owned.place.rename(tmp_path / "moved")
    with pytest.raises(WarehouseError, match=f"there is no table at {owned.place}.*bring it back"):
        owned.start()
    owned.place.symlink_to(moved)
    owned.start()
    owned.goes_on()
    assert audit(owned.spark, str(owned.lake.warehouse)).is_well


def test_the_audit_tells_what_an_owner_deletes_of_transactions_and_a_later_group_does_not_get_it(owned: Owned) -> None:
    owned.sql("DELETE FROM {} WHERE message_id IN ('t1', 'n2')")
    owned.goes_on()
    findings = audit(owned.spark, str(owned.lake.warehouse)).findings
    assert [(finding.name, finding.count) for finding in findings] == [("NOT_VISIBLE", 1)]
    left = owned.visible()
    assert Counter(rest(owned.lake.warehouse, group="later")) == left
    assert left.keys().isdisjoint({"t1", "n1", "n2"})
    assert {*Counter(name for name, _ in owned.consumed).values()} == {1}, "what was rewritten does not come again"
