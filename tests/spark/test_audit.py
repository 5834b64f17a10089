"""The audit: a warehouse with every kind of end is well, and each kind of damage to a copy of it has its finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.lake import Lake

from commitlake import config
from commitlake.cli import commands
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.ops.audit import AuditReport, Finding, TopicCounts, audit
from commitlake.protocol import wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.message_batch import Member, pack

SOON = {"TIMER_DELAY_MS": "1"}
LATER = {"TIMER_DELAY_MS": "3600000"}
COMMITTED = [f"committed {n}" for n in range(11)]
DELIVERED = [f"delivered {n}" for n in range(6)]
DISCARDED = [f"discarded {n}" for n in range(5)]
DELAYED = [f"delayed {n}" for n in range(6)]
NORMAL = [f"normal {n}" for n in range(3)]
REJECTED = [f"rejected {n}" for n in range(4)]


class History:
    """Half messages, messages, ops and refused records by name; every kind of end, and what has none."""

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self.lake, self.spark = lake, spark
        self.half: dict[str, Position] = {}
        self.message: dict[str, Position] = {}
        self.op: dict[str, Position] = {}

    def tell(self) -> None:
        self.half_messages()
        self.messages()
        self.lake.run(self.spark)
        self.lake.run(self.spark, transaction_timeout="0s", transaction_op_park_time="0s")
        self.lake.run(self.spark, transaction_timeout="0s", transaction_check_interval="1ms")
        for name in ("discarded 0", "discarded 1"):
            self.lake.admin("RESUME", name, self.half[name])
        self.lake.run(self.spark)
        self.decide("COMMIT", "discarded 0")
        self.half["pending"] = self.lake.half("pending")
        self.lake.run(self.spark)

    def half_messages(self) -> None:
        for name in [*COMMITTED, "rolled back", *DISCARDED]:
            self.half[name] = self.lake.half(name)
        for name, delays in [*[(name, SOON) for name in DELIVERED], ("waiting", LATER)]:
            self.half[name] = self.lake.half(name, delays=delays)
        self.half["part"] = self.lake.half(COMMITTED[0], 1, first=self.half[COMMITTED[0]], topic="payments")
        for name in [*COMMITTED, *DELIVERED, "waiting"]:
            self.decide("COMMIT", name)
        self.decide("ROLLBACK", "rolled back")
        self.decide("COMMIT", DISCARDED[4], group="other")
        for name in REJECTED:
            self.half[name] = self.lake.half(name, topic="no topic")

    def decide(self, decision: str, name: str, **more: object) -> None:
        self.op[name] = self.lake.op(decision, name, self.half[name], **more).position

    def source(self, name: str) -> str:
        return "messages" if name in self.message else "half"

    def place(self, name: str) -> Position:
        return (self.half | self.message)[name]

    def last_batch(self) -> int:
        return max(row["batch_id"] for row in self.lake.rows("batches"))

    def messages(self) -> None:
        for name in DELAYED:
            self.message[name] = self.lake.message(name, delays=SOON, topic="orders")
        for name in ("delayed, waiting", "recalled"):
            self.message[name] = self.lake.message(name, delays=LATER, topic="orders")
        self.lake.recall("recalled", self.message["recalled"], topic="orders")
        for name in NORMAL:
            self.message[name] = self.lake.message(name, topic="orders")
        members = pack([Member(b"a", {"UNIQ_KEY": "a"}), Member(b"b", {"UNIQ_KEY": "b"})])
        batch = wire.MessageRecord(topic="orders", msg_id="batch", body=members, batch=2)
        self.message["batch"] = self.lake.send("messages", wire.encode_message(batch), 0).position


@pytest.fixture(scope="module")
def history(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    lake = Lake(broker.bootstrap_servers, "audit.", tmp_path_factory.mktemp("audit"))
    told = History(lake, spark)
    told.tell()
    yield told
    lake.close()


class Copy:
    """A copy of the history's warehouse, to be damaged by SQL."""

    def __init__(self, history: History, place: Path) -> None:
        self.history, self.spark, self.root = history, history.spark, str(place / "warehouse")
        copytree(history.lake.root / "warehouse", self.root)
        for topic in history.lake.topics():
            self.sql(f"ALTER TABLE {self.at('topics/' + topic)} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")

    def at(self, table: str) -> str:
        return f"delta.`{self.root}/{table}`"

    def sql(self, text: str) -> None:
        self.spark.sql(text)

    def again(self, table: str, where: str, **changes: str) -> None:
        """Append rows that stand there once more, changed."""
        rows = self.spark.read.format("delta").load(f"{self.root}/{table}").where(where)
        for name, value in changes.items():
            rows = rows.withColumn(name, F.expr(value).cast(rows.schema[name].dataType))
        rows.write.format("delta").mode("append").save(f"{self.root}/{table}")

    def delete(self, table: str, where: str) -> None:
        self.sql(f"DELETE FROM {self.at(table)} WHERE {where}")

    def change(self, table: str, where: str, change: str) -> None:
        self.sql(f"UPDATE {self.at(table)} SET {change} WHERE {where}")

    def audit(self) -> AuditReport:
        return audit(self.spark, self.root)

    def rows_of(self, table: str, message: str) -> str:
        """The condition that finds a message's rows in a table."""
        queue, offset = {
            "op": ("queue", "op_offset"),
            "transactions": ("queue", "half_offset"),
            "checks": ("queue", "half_offset"),
            "rejected": ("kafka_partition", "kafka_offset"),
        }.get(table, ("source_queue", "source_offset") if table.startswith("topics/") else ("queue", "queue_offset"))
        at = self.history.op[message] if table == "op" else self.history.place(message)
        found = f"{queue} = {at.queue} AND {offset} = {at.offset}"
        has_source = table in ("deliveries", "rejected") or table.startswith("topics/")
        return f"{found} AND source = '{self.history.source(message)}'" if has_source else found


Act = Callable[[Copy, str], None]
"""Damages the rows of a message."""


def again(table: str, only: str = "true", **changes: str) -> Act:
    return lambda copy, name: copy.again(table, f"{copy.rows_of(table, name)} AND {only}", **changes)


def delete(table: str) -> Act:
    return lambda copy, name: copy.delete(table, copy.rows_of(table, name))


def change(table: str, to: str) -> Act:
    return lambda copy, name: copy.change(table, copy.rows_of(table, name), to)


def show_in_payments(copy: Copy, name: str) -> None:
    rows = copy.spark.read.format("delta").load(f"{copy.root}/topics/orders").where(copy.rows_of("topics/orders", name))
    rows.write.format("delta").mode("append").save(f"{copy.root}/topics/payments")


def move_to_payments(copy: Copy, name: str) -> None:
    show_in_payments(copy, name)
    delete("topics/orders")(copy, name)


def in_the_last_batch(copy: Copy, name: str) -> None:
    change("topics/orders", f"batch_id = {copy.history.last_batch()}")(copy, name)


def land(copy: Copy, name: str) -> None:
    """The record was rejected."""
    at = copy.history.place(name)
    copy.again("half", copy.rows_of("half", "pending"), queue=str(at.queue), queue_offset=str(at.offset))


EARLY = "visible_at = TIMESTAMP'2020-01-01'"
DAMAGES: list[tuple[str, str, Act]] = [
    ("LANDED_TWICE", "rolled back", again("half")),
    ("LANDED_TWICE", "delayed, waiting", again("delayed")),
    ("LANDED_TWICE", COMMITTED[0], again("op", only="NOT admin")),
    ("LANDED_AND_REJECTED", REJECTED[0], land),
    ("REJECTED_TWICE", REJECTED[1], again("rejected")),
    ("ENDED_TWICE", COMMITTED[1], again("transactions")),
    ("DELIVERED_TWICE", DELIVERED[0], again("deliveries")),
    ("KEPT_TWICE", DISCARDED[0], again("discarded")),
    ("CHECKED_TWICE", DISCARDED[1], again("checks")),
    ("VISIBLE_TWICE", COMMITTED[2], again("topics/orders")),
    ("VISIBLE_TWICE", DELAYED[0], again("topics/orders")),
    ("VISIBLE_TWICE", NORMAL[0], again("topics/orders")),
    ("VISIBLE_TWICE", "batch", again("topics/orders", only="source_index = 1")),
    ("VISIBLE_IN_TWO_TOPICS", COMMITTED[3], show_in_payments),
    ("VISIBLE_IN_TWO_TOPICS", NORMAL[1], show_in_payments),
    ("VISIBLE_TOO_EARLY", DELIVERED[1], change("topics/orders", EARLY)),
    ("VISIBLE_TOO_EARLY", NORMAL[2], change("topics/orders", EARLY)),
    ("VISIBLE_IN_OTHER_QUEUE", COMMITTED[4], change("topics/orders", "queue_id = 63")),
    ("VISIBLE_IN_OTHER_BATCH", COMMITTED[5], in_the_last_batch),
    ("VISIBLE_IN_OTHER_BATCH", DELAYED[1], in_the_last_batch),
    ("OTHER_TOPIC", "part", change("transactions", "topic = 'orders'")),
    ("OTHER_TOPIC", COMMITTED[6], move_to_payments),
    ("NOT_VISIBLE", COMMITTED[7], delete("topics/orders")),
    ("NOT_VISIBLE", DELIVERED[2], delete("topics/orders")),
    ("NOT_VISIBLE", DELAYED[2], delete("topics/orders")),
    ("VISIBLE_UNDECIDED", COMMITTED[8], delete("transactions")),
    ("VISIBLE_UNDECIDED", COMMITTED[9], change("transactions", "state = 'ROLLED_BACK'")),
    ("VISIBLE_UNDECIDED", DELIVERED[3], delete("deliveries")),
    ("VISIBLE_UNDECIDED", DELAYED[3], delete("deliveries")),
    ("VISIBLE_RECALLED", DELAYED[4], change("deliveries", "state = 'RECALLED'")),
    ("END_OF_NOTHING", COMMITTED[10], delete("half")),
    ("END_OF_NOTHING", DISCARDED[2], delete("half")),
    ("DELIVERY_OF_NOTHING", DELAYED[5], delete("delayed")),
    ("DELIVERY_OF_NOTHING", DELIVERED[4], delete("transactions")),
    ("NOT_KEPT", DISCARDED[3], delete("discarded")),
    ("KEPT_UNDISCARDED", DISCARDED[4], delete("transactions")),
]


@pytest.fixture(scope="module")
def damaged(history: History, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Every kind of damage, each to a message of its own."""
    copy = Copy(history, tmp_path_factory.mktemp("damaged"))
    for _, message, act in DAMAGES:
        act(copy, message)
    return copy


@pytest.fixture(scope="module")
def found(damaged: Copy) -> list[tuple[str, str]]:
    """Findings and what they are about."""
    return [(finding.name, example) for finding in damaged.audit().findings for example in finding.examples]


@pytest.mark.parametrize(("finding", "message"), [(finding, message) for finding, message, _ in DAMAGES])
def test_each_damage_is_found_and_named_once(
    history: History, found: list[tuple[str, str]], finding: str, message: str
) -> None:
    at = history.op[message] if message == COMMITTED[0] else history.place(message)
    source = "op" if message == COMMITTED[0] else history.source(message)
    about = {(name, example) for name, example in found if re.match(rf"{source} {at}\b", example)}
    assert [name for name, _ in about] == [finding]


def test_nothing_else_is_found_than_what_was_damaged(damaged: Copy, found: list[tuple[str, str]]) -> None:
    assert len(found) == len(DAMAGES)
    assert sum(finding.count for finding in damaged.audit().findings) == len(DAMAGES)


def test_a_warehouse_with_every_kind_of_end_is_well(history: History) -> None:
    report = audit(history.spark, history.lake.configured().warehouse)
    assert report.findings == ()
    orders = TopicCounts(
        "orders", half=25, committed=19, rolled_back=1, discarded=3, pending=2,
        delayed=8, delivered=12, recalled=1, waiting=2, visible=24, holds=True,
    )  # fmt: skip
    payments = TopicCounts("payments", 1, 1, 0, 0, 0, 0, 0, 0, 0, visible=1, holds=True)
    assert report.topics == (orders, payments)
    assert report.is_well


@pytest.mark.soak
def test_what_stands_in_a_wrong_topic_counts_there(history: History, tmp_path: Path) -> None:
    copy = Copy(history, tmp_path)
    move_to_payments(copy, COMMITTED[0])
    orders, payments = copy.audit().topics
    assert (orders.committed, orders.visible, orders.holds) == (19, 23, False)
    assert (payments.committed, payments.visible, payments.holds) == (1, 2, False)


def test_a_batch_that_is_told_twice_or_not_at_all_is_found(history: History, tmp_path: Path) -> None:
    copy = Copy(history, tmp_path)
    first, second = sorted(row["batch_id"] for row in history.lake.rows("batches"))[:2]
    copy.delete("batches", f"batch_id = {first}")
    copy.again("batches", f"batch_id = {second}")
    assert copy.audit().findings == (
        Finding("BATCH_TWICE", 1, (f"batch {second}",)),
        Finding("BATCH_INCOMPLETE", 1, (f"batch {first}",)),
    )


@pytest.mark.soak
def test_a_batch_that_is_being_written_changes_nothing(history: History, tmp_path: Path) -> None:
    copy = Copy(history, tmp_path)
    before = copy.audit()
    copy.again("transactions", copy.rows_of("transactions", COMMITTED[0]), half_offset="999", batch_id="1000000")
    copy.again("topics/orders", copy.rows_of("topics/orders", COMMITTED[0]), batch_id="1000000")
    copy.again("deliveries", copy.rows_of("deliveries", DELAYED[0]), batch_id="1000000")
    assert copy.audit() == before


def test_a_batch_that_is_not_yet_complete_is_as_if_it_were_not(history: History, tmp_path: Path) -> None:
    """The commit of one that was discarded and reopened before."""
    copy = Copy(history, tmp_path)
    copy.delete("batches", f"batch_id = {history.last_batch()}")
    report = copy.audit()
    assert report.is_well
    assert (report.topics[0].committed, report.topics[0].pending, report.topics[0].visible) == (18, 3, 23)


ENDED = ("rolled back", DELIVERED[0], DISCARDED[0], DELAYED[0], "recalled", REJECTED[0], "part", COMMITTED[0])
STEPS = (("op", "half", "delayed"), ("transactions",), ("deliveries",), ("checks", "discarded", "rejected"))


def lose(copy: Copy, *tables: str) -> None:
    """Deletes the rows of some messages that have ended."""
    for table in tables:
        names = [name for name in ENDED if table != "op" or name in copy.history.op]
        copy.delete(table, " OR ".join(f"({copy.rows_of(table, name)})" for name in names))


def retain_since(copy: Copy, moment: str) -> None:
    copy.sql(f"INSERT INTO {copy.at('maintenance')} VALUES ({moment}, current_timestamp())")


@pytest.mark.soak
def test_what_ended_long_ago_may_be_gone_from_any_table(history: History, tmp_path: Path) -> None:
    copy = Copy(history, tmp_path)
    retain_since(copy, "current_timestamp()")
    for tables in STEPS:
        lose(copy, *tables)
        report = copy.audit()
        assert report.is_well, f"after {tables}: {report}"


@pytest.mark.soak
def test_what_ended_since_may_not_be_gone(history: History, tmp_path: Path) -> None:
    copy = Copy(history, tmp_path)
    retain_since(copy, "TIMESTAMP'2020-01-01'")
    lose(copy, "half", "delayed")
    names = [finding.name for finding in copy.audit().findings]
    assert names == ["END_OF_NOTHING", "DELIVERY_OF_NOTHING"]


@pytest.mark.soak
def test_what_age_does_not_explain_is_found_at_any_age(history: History, tmp_path: Path) -> None:
    copy = Copy(history, tmp_path)
    lose(copy, *[table for tables in STEPS for table in tables])
    retain_since(copy, "current_timestamp()")
    copy.again("topics/orders", copy.rows_of("topics/orders", COMMITTED[0]))
    copy.delete("topics/orders", copy.rows_of("topics/orders", COMMITTED[1]))
    assert [finding.name for finding in copy.audit().findings] == ["VISIBLE_TWICE", "NOT_VISIBLE"]


def command(root: str) -> int:
    return commands.audit(config.from_mapping({"warehouse": root}))


def test_the_command_tells_the_counts_and_that_all_is_well(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(history.lake.configured().warehouse) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    orders = dict(zip(lines[0], lines[1], strict=True))
    assert (orders["topic"], orders["committed"], orders["holds"]) == ("orders", "19", "True")
    assert lines[-1] == ["all", "is", "well", "up", "to", "batch", str(history.last_batch())]


def test_the_command_tells_findings_and_ends_with_1(damaged: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(damaged.root) == 1
    lines = capsys.readouterr().out.splitlines()
    at = damaged.history.place(REJECTED[1])
    assert f"REJECTED_TWICE: 1 (half {at})" in lines
    assert lines[-1] == f"{len(DAMAGES)} findings up to batch {damaged.history.last_batch()}"
