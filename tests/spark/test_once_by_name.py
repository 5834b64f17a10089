"""Once by name: a topic of `topics.dedup` shows a name once in its window, whatever kind of message comes second."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake, Record, newest

from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.protocol import message_batch, wire
from commitlake.protocol.encoding import Position
from commitlake.reading.questions.find import find
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import history as transaction_history
from commitlake.tools.audit.audit import audit

pytestmark = pytest.mark.short

DEDUP = {
    "orders": {"by": "keys", "window": "30d"},
    "packs": {"window": "1d"},
    "brief": {"window": "1s"},
    "ids": {"by": "message_id", "window": "1d"},
}


class History:
    """What was sent, worked off by two starts: the second one has the names from the tables."""

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self.lake = lake
        self.first_start()
        lake.run(spark)
        self.shown_first = {topic: ids(lake, topic) for topic in ("orders", "points", "brief", "ids")}
        time.sleep(1.1)  # the window of `brief`
        self.second_start()
        lake.run(spark)

    def first_start(self) -> None:
        lake = self.lake
        self.normal = lake.message("normal", topic="orders", keys="A")
        self.again = lake.message("again", queue=1, topic="orders", keys="A")
        lake.message("none", topic="orders")
        lake.message("none either", topic="orders", keys="")
        lake.message("elsewhere", topic="points", keys="A")
        self.pending, self.taken, self.free = (
            lake.half(name, keys=key) for name, key in (("1", "B"), ("2", "A"), ("3", "C"))
        )
        part = lake.half("3", queue=1, first=self.free, topic="points", keys="C")
        lake.op("COMMIT", "2", self.taken)
        lake.op("COMMIT", "3", self.free, part)
        self.late = lake.message("late", topic="orders", keys="D", delays={"TIMER_DELAY_MS": "1"})
        self.batches = {
            name: batch(lake, name, *keys)
            for name, keys in {"first": "AB", "other": "CB", "itself": "DD", "free": ["C", "D", ""]}.items()
        }
        for _ in range(2):
            self.twice()

    def second_start(self) -> None:
        """Who is decided later comes second, however early it was stored."""
        lake = self.lake
        self.before = lake.message("B before", topic="orders", keys="B")
        lake.op("COMMIT", "1", self.pending)
        self.repeated = lake.half("4", keys="C")
        rolled_back = lake.half("5", keys="E")
        lake.op("COMMIT", "4", self.repeated)
        lake.op("ROLLBACK", "5", rolled_back)
        lake.message("E after a rollback", topic="orders", keys="E")
        lake.message("D again", topic="orders", keys="D")
        lake.message("D once more", topic="orders", keys="D", delays={"TIMER_DELAY_MS": "1"})
        self.twice()

    def twice(self) -> None:
        self.lake.message("same", topic="brief", keys="A")
        self.lake.message("same", topic="ids")

    def rejected(self) -> dict[Position, tuple[str, str]]:
        """Reason and detail of each record of `messages` that was refused."""
        return {record.position: (row["reason"], row["detail"]) for record, row in self.lake.rejected().items()}


@pytest.fixture(scope="module")
def history(broker: EmbeddedBroker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    place = tmp_path_factory.mktemp("once")
    with Lake(broker.bootstrap_servers, "once.", place, **{"topics.dedup": DEDUP}) as lake:
        yield History(lake, spark)


def test_the_first_to_be_visible_holds_a_name(history: History) -> None:
    assert history.shown_first["orders"] == {"normal", "none", "none either", "3-0", "late"}
    assert history.shown_first["points"] == {"elsewhere", "3-1"}
    assert ids(history.lake, "orders") == history.shown_first["orders"] | {"B before", "E after a rollback"}


def test_a_normal_message_is_refused_with_the_place_of_the_first(history: History) -> None:
    assert history.rejected()[history.again] == ("DUPLICATE_OF", f"messages-{history.normal}")
    assert history.lake.rejected()[Record("messages", *history.again)]["value"] == b"again"


def test_a_transaction_or_delayed_message_that_comes_second_says_so_in_its_ledger_row(history: History) -> None:
    ended = newest(history.lake.rows("transactions"))
    duplicates = {at: row["duplicate_of"] for at, row in ended.items() if row["duplicate_of"]}
    assert duplicates == {
        history.taken: f"messages-{history.normal}",
        history.repeated: f"half-{history.free}",
        history.pending: f"messages-{history.before}",
    }
    assert {row["state"] for at, row in ended.items() if at in duplicates} == {"COMMITTED"}
    delivered = {row["message_id"]: (row["state"], row["duplicate_of"]) for row in history.lake.rows("deliveries")}
    assert delivered == {"late": ("DELIVERED", None), "D once more": ("DUPLICATE", f"messages-{history.late}")}


@pytest.mark.long
def test_the_audit_counts_duplicates_and_the_history_tells_them(history: History, spark: SparkSession) -> None:
    report = audit(spark, str(history.lake.warehouse))
    assert report.is_well, report
    counted = {counts.topic: counts.duplicates for counts in report.topics}
    assert (counted["orders"], counted["points"]) == (4, 0)
    with opened(str(history.lake.warehouse)) as tables:
        told = transaction_history(tables, "2")
    assert told is not None and told["half_messages"][0]["visible"] is False
    text = f"not shown, duplicate of messages-{history.normal}"
    assert any(text in event["detail"] for event in told["events"])


def test_a_key_tells_which_of_its_messages_are_not_shown(history: History) -> None:
    def told(keys: str) -> set[tuple[str, str]]:
        with opened(str(history.lake.warehouse)) as tables:
            rows = find(tables, f"{history.lake.root}/no-receipts", keys).to_pylist()
        return {
            (row["what"], str(row["detail"]).partition("not shown, ")[2]) for row in rows if row["topic"] == "orders"
        }

    assert ("transaction", f"duplicate of messages-{history.normal}") in told("A")
    assert ("delayed", f"duplicate of messages-{history.late}") in told("D")


def test_a_batch_is_refused_whole(history: History) -> None:
    assert ids(history.lake, "packs") == {"first 0", "first 1", "free 0", "free 1", "free 2"}
    refused = {name: history.rejected().get(at) for name, at in history.batches.items()}
    assert refused == {
        "first": None,
        "other": ("DUPLICATE_OF", f"messages-{history.batches['first']}"),
        "itself": ("DUPLICATE_OF", f"messages-{history.batches['itself']}"),
        "free": None,
    }


def test_a_name_is_free_after_its_window_and_may_be_the_message_id(history: History) -> None:
    assert history.shown_first["brief"] == history.shown_first["ids"] == {"same"}
    assert [len(history.lake.topic(name)) for name in ("brief", "ids")] == [2, 1]


def batch(lake: Lake, name: str, *keys: str) -> Position:
    members = [
        message_batch.Member(b"", {"UNIQ_KEY": f"{name} {number}", **({"KEYS": key} if key else {})})
        for number, key in enumerate(keys)
    ]
    record = wire.MessageRecord(topic="packs", msg_id=name, body=message_batch.pack(members), batch=len(members))
    return lake.send("messages", wire.encode_message(record), 0).position


def ids(lake: Lake, topic: str) -> set[str]:
    """The message ids that a topic shows; fails when it shows one twice."""
    found = [row["message_id"] for row in lake.topic(topic)]
    assert len(found) == len(set(found))
    return set(found)
