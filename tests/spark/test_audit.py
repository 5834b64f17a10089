"""The audit: a warehouse with every kind of end is well, and each kind of damage to a copy of it has its finding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from tests.support.lake import Lake, ended
from tests.support.story import COMMITTED, DELAYED, DELIVERED, DISCARDED, NORMAL, REJECTED, Story

from commitlake import config
from commitlake.protocol.encoding import Position
from commitlake.tools.audit.audit import AuditReport, Finding, TopicCounts, audit
from commitlake.tools.cli import commands


class Copy:
    """A copy of the story's warehouse, to be damaged; by deltalake, whose commits take a fiftieth of Spark's."""

    def __init__(self, story: Story, place: Path) -> None:
        self.story, self.root = story, place / "warehouse"
        copytree(story.lake.warehouse, self.root)
        for topic in story.lake.topics():
            self.table(f"topics/{topic}").alter.set_table_properties({"delta.appendOnly": "false"})

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.root / name))

    def again(self, name: str, where: str, *, to: str = "", **changes: object) -> None:
        """Appends rows of a table once more, changed, to the same table or to another."""
        table = self.table(name)
        found = pyarrow.table(QueryBuilder().register("t", table).execute(f"SELECT * FROM t WHERE {where}"))
        rows = found.cast(table.to_pyarrow_dataset().schema)
        assert len(rows) > 0, where
        for at, column in enumerate(rows.schema):
            if column.name in changes:
                rows = rows.set_column(at, column, pyarrow.array([changes[column.name]] * len(rows), column.type))
        write_deltalake(self.table(to or name), rows, mode="append")

    def delete(self, name: str, where: str) -> None:
        self.table(name).delete(where)

    def change(self, name: str, where: str, **changes: Any) -> None:
        self.table(name).update(predicate=where, new_values=changes)

    def audit(self) -> AuditReport:
        return audit(self.story.spark, str(self.root))

    def rows_of(self, table: str, message: str) -> str:
        """The condition that finds a message's rows in a table."""
        queue, offset = {
            "op": ("queue", "op_offset"),
            "transactions": ("queue", "half_offset"),
            "checks": ("queue", "half_offset"),
            "rejected": ("kafka_partition", "kafka_offset"),
        }.get(table, ("source_queue", "source_offset") if table.startswith("topics/") else ("queue", "queue_offset"))
        at = self.story.op[message].position if table == "op" else place(self.story, message)
        found = f"{queue} = {at.queue} AND {offset} = {at.offset}"
        has_source = table in ("deliveries", "rejected") or table.startswith("topics/")
        return f"{found} AND source = '{source(self.story, message)}'" if has_source else found


def source(story: Story, message: str) -> str:
    return "messages" if message in story.message else "half"


def place(story: Story, message: str) -> Position:
    return (story.half | story.message)[message]


def batches(story: Story) -> list[int]:
    return sorted(row["batch_id"] for row in story.lake.rows("batches"))


Act = Callable[[Copy, str], None]
"""Damages the rows of a message."""


def again(table: str, only: str = "true") -> Act:
    return lambda copy, name: copy.again(table, f"{copy.rows_of(table, name)} AND {only}")


def delete(table: str) -> Act:
    return lambda copy, name: copy.delete(table, copy.rows_of(table, name))


def change(table: str, **changes: Any) -> Act:
    return lambda copy, name: copy.change(table, copy.rows_of(table, name), **changes)


def show_in_payments(copy: Copy, name: str) -> None:
    copy.again("topics/orders", copy.rows_of("topics/orders", name), to="topics/payments")


def move_to_payments(copy: Copy, name: str) -> None:
    show_in_payments(copy, name)
    delete("topics/orders")(copy, name)


def move_to_last_batch(copy: Copy, name: str) -> None:
    change("topics/orders", batch_id=batches(copy.story)[-1])(copy, name)


def land(copy: Copy, name: str) -> None:
    """The record was rejected."""
    at = place(copy.story, name)
    copy.again("half", copy.rows_of("half", "pending"), queue=at.queue, queue_offset=at.offset)


EARLY = {"visible_at": datetime(2020, 1, 1, tzinfo=UTC)}
DAMAGES: list[tuple[str, str, Act]] = [
    ("LANDED_TWICE", "rolled back", again("half")),
    ("LANDED_TWICE", "waiting", again("delayed")),
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
    ("VISIBLE_TOO_EARLY", DELIVERED[1], change("topics/orders", **EARLY)),
    ("VISIBLE_TOO_EARLY", NORMAL[2], change("topics/orders", **EARLY)),
    ("VISIBLE_IN_OTHER_QUEUE", COMMITTED[4], change("topics/orders", queue_id=63)),
    ("VISIBLE_IN_OTHER_BATCH", COMMITTED[5], move_to_last_batch),
    ("VISIBLE_IN_OTHER_BATCH", DELAYED[1], move_to_last_batch),
    ("OTHER_TOPIC", "three 3", change("transactions", topic="orders")),
    ("OTHER_TOPIC", COMMITTED[6], move_to_payments),
    ("NOT_VISIBLE", COMMITTED[7], delete("topics/orders")),
    ("NOT_VISIBLE", DELIVERED[2], delete("topics/orders")),
    ("NOT_VISIBLE", DELAYED[2], delete("topics/orders")),
    ("VISIBLE_UNDECIDED", COMMITTED[8], delete("transactions")),
    ("VISIBLE_UNDECIDED", COMMITTED[9], change("transactions", state="ROLLED_BACK")),
    ("VISIBLE_UNDECIDED", DELIVERED[3], delete("deliveries")),
    ("VISIBLE_UNDECIDED", DELAYED[3], delete("deliveries")),
    ("VISIBLE_RECALLED", DELAYED[4], change("deliveries", state="RECALLED")),
    ("END_OF_NOTHING", COMMITTED[10], delete("half")),
    ("END_OF_NOTHING", DISCARDED[2], delete("half")),
    ("DELIVERY_OF_NOTHING", DELAYED[5], delete("delayed")),
    ("DELIVERY_OF_NOTHING", DELIVERED[4], delete("transactions")),
    ("NOT_KEPT", DISCARDED[3], delete("discarded")),
    ("KEPT_UNDISCARDED", DISCARDED[4], delete("transactions")),
]


@pytest.fixture(scope="module")
def well(story: Story) -> AuditReport:
    """Of the tables as the coordinator left them."""
    return audit(story.spark, str(story.lake.warehouse))


@pytest.fixture(scope="module")
def damaged(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Every kind of damage, each to a message of its own; and a batch that counts twice, another not at all."""
    copy = Copy(story, tmp_path_factory.mktemp("damaged"))
    for _, message, act in DAMAGES:
        act(copy, message)
    first, second = batches(story)[:2]
    copy.delete("batches", f"batch_id = {first}")
    copy.again("batches", f"batch_id = {second}")
    return copy


@pytest.fixture(scope="module")
def findings(damaged: Copy) -> tuple[Finding, ...]:
    return damaged.audit().findings


@pytest.mark.short
@pytest.mark.parametrize(("finding", "message"), [(finding, message) for finding, message, _ in DAMAGES])
def test_each_damage_is_found_and_named_once(
    story: Story, findings: tuple[Finding, ...], finding: str, message: str
) -> None:
    is_op = message == COMMITTED[0]
    about = rf"op {story.op[message].position}" if is_op else rf"{source(story, message)} {place(story, message)}"
    named = [(found.name, example) for found in findings for example in found.examples]
    assert [name for name, example in named if re.match(rf"{about}\b", example)] == [finding]


def test_a_batch_that_is_complete_twice_or_never_is_found(story: Story, findings: tuple[Finding, ...]) -> None:
    first, second = batches(story)[:2]
    assert [finding for finding in findings if finding.name.startswith("BATCH")] == [
        Finding("BATCH_TWICE", 1, (f"batch {second}",)),
        Finding("BATCH_INCOMPLETE", 1, (f"batch {first}",)),
    ]


@pytest.mark.short
def test_nothing_else_is_found_than_what_was_damaged(findings: tuple[Finding, ...]) -> None:
    assert sum(len(finding.examples) for finding in findings) == len(DAMAGES) + 2
    assert sum(finding.count for finding in findings) == len(DAMAGES) + 2


@pytest.mark.short
def test_a_warehouse_with_every_kind_of_end_is_well(story: Story, well: AuditReport) -> None:
    assert well.findings == ()
    assert [counts.topic for counts in well.topics] == story.lake.topics()
    assert well.topics == tuple(counted(story.lake, topic) for topic in story.lake.topics())
    assert sum(counts.half + counts.delayed for counts in well.topics) > 30
    assert well.is_well


def counted(lake: Lake, topic: str) -> TopicCounts:
    """The counts of a topic, from rows as deltalake reads them."""
    half, delayed = ([row for row in lake.rows(name) if row["topic"] == topic] for name in ("half", "delayed"))
    places = {(row["queue"], row["queue_offset"]) for row in half}
    ends = {at: row for at, row in ended(lake).items() if at in places}
    states = Counter(row["state"] for row in ends.values())
    late = {at for at, row in ends.items() if row["state"] == "COMMITTED" and row["deliver_at"] is not None}
    done = Counter(row["state"] for row in lake.rows("deliveries") if row["topic"] == topic)
    return TopicCounts(
        topic,
        normal=sum(row["batch_id"] is None for row in lake.topic(topic)),
        half=len(half),
        committed=states["COMMITTED"],
        rolled_back=states["ROLLED_BACK"],
        discarded=states["DISCARDED"],
        pending=len(half) - len(ends),
        delayed=len(delayed),
        delivered=done["DELIVERED"],
        recalled=done["RECALLED"],
        duplicates=0,
        waiting=len(delayed) + len(late) - done.total(),
        visible=len(lake.topic(topic)),
        holds=True,
    )


@pytest.mark.soak
def test_a_message_in_a_wrong_topic_counts_there(story: Story, well: AuditReport, tmp_path: Path) -> None:
    copy = Copy(story, tmp_path)
    move_to_payments(copy, COMMITTED[0])
    delays, orders, payments = well.topics
    assert copy.audit().topics == (
        delays,
        replace(orders, visible=orders.visible - 1, holds=False),
        replace(payments, visible=payments.visible + 1, holds=False),
    )


@pytest.mark.soak
def test_a_batch_that_is_being_written_changes_nothing(story: Story, well: AuditReport, tmp_path: Path) -> None:
    copy = Copy(story, tmp_path)
    copy.again("transactions", copy.rows_of("transactions", COMMITTED[0]), half_offset=999, batch_id=1_000_000)
    copy.again("topics/orders", copy.rows_of("topics/orders", COMMITTED[0]), batch_id=1_000_000)
    copy.again("deliveries", copy.rows_of("deliveries", DELAYED[0]), batch_id=1_000_000)
    assert copy.audit() == well


def test_a_batch_that_is_not_yet_complete_counts_for_nothing(story: Story, well: AuditReport, tmp_path: Path) -> None:
    """The last one ended transactions that had been reopened, and one that had stayed open."""
    last = batches(story)[-1]
    ended = [row["state"] for row in story.lake.rows("transactions") if row["batch_id"] == last]
    assert set(ended) == {"COMMITTED", "DISCARDED"}
    copy = Copy(story, tmp_path)
    copy.delete("batches", f"batch_id = {last}")
    report, orders = copy.audit(), well.topics[1]
    assert report.is_well
    assert report.topics[1] == replace(
        orders,
        committed=orders.committed - ended.count("COMMITTED"),
        discarded=orders.discarded - ended.count("DISCARDED"),
        pending=orders.pending + len(ended),
        visible=orders.visible - ended.count("COMMITTED"),
    )


ENDED = ("rolled back", DELIVERED[0], "unknown", DELAYED[0], "recalled", REJECTED[0], "three 3", COMMITTED[0])
STEPS = (("op", "half", "delayed"), ("transactions",), ("deliveries",), ("checks", "discarded", "rejected"))


def lose(copy: Copy, *tables: str) -> None:
    """Deletes the rows of some messages that have ended."""
    ops = {name for name, record in copy.story.op.items() if record.source == "op"}
    for table in tables:
        names = [name for name in ENDED if table != "op" or name in ops]
        copy.delete(table, " OR ".join(f"({copy.rows_of(table, name)})" for name in names))


def retain_since(copy: Copy, moment: datetime) -> None:
    """As maintenance says before it deletes rows."""
    table = copy.table("maintenance")
    schema = table.to_pyarrow_dataset().schema
    columns = [pyarrow.array([at], column.type) for at, column in zip((moment, datetime.now(UTC)), schema, strict=True)]
    write_deltalake(table, pyarrow.table(columns, schema=schema), mode="append")


@pytest.mark.soak
def test_what_ended_long_ago_may_be_gone_from_any_table(story: Story, tmp_path: Path) -> None:
    copy = Copy(story, tmp_path)
    retain_since(copy, datetime.now(UTC))
    for tables in STEPS:
        lose(copy, *tables)
        report = copy.audit()
        assert report.is_well, f"after {tables}: {report}"


@pytest.mark.soak
def test_what_ended_since_may_not_be_gone(story: Story, tmp_path: Path) -> None:
    copy = Copy(story, tmp_path)
    retain_since(copy, datetime(2020, 1, 1, tzinfo=UTC))
    lose(copy, "half", "delayed")
    names = [finding.name for finding in copy.audit().findings]
    assert names == ["END_OF_NOTHING", "DELIVERY_OF_NOTHING"]


@pytest.mark.soak
def test_what_age_does_not_explain_is_found_at_any_age(story: Story, tmp_path: Path) -> None:
    copy = Copy(story, tmp_path)
    lose(copy, *[table for tables in STEPS for table in tables])
    retain_since(copy, datetime.now(UTC))
    copy.again("topics/orders", copy.rows_of("topics/orders", COMMITTED[0]))
    copy.delete("topics/orders", copy.rows_of("topics/orders", COMMITTED[1]))
    assert [finding.name for finding in copy.audit().findings] == ["VISIBLE_TWICE", "NOT_VISIBLE"]


def command(root: Path) -> int:
    return commands.audit(config.from_mapping({"warehouse": str(root)}))


def test_the_command_prints_the_counts_and_that_all_is_well(
    story: Story, well: AuditReport, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(story.lake.warehouse) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    orders = dict(zip(lines[0], lines[2], strict=True))
    assert (orders["topic"], orders["committed"], orders["holds"]) == ("orders", str(well.topics[1].committed), "True")
    assert lines[-1] == ["all", "is", "well", "up", "to", "batch", str(batches(story)[-1])]


def test_the_command_prints_findings_and_ends_with_1(damaged: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(damaged.root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"REJECTED_TWICE: 1 (half {place(damaged.story, REJECTED[1])})" in lines
    assert lines[-1] == f"{len(DAMAGES) + 2} findings up to batch {batches(damaged.story)[-1]}"
