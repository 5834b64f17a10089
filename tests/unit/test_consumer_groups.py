"""What groups agree on: logs of their own without needless commits, questions about them, rewinding and deleting."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs
from tests.support.polling import wait_for
from tests.support.topic_table import consumer, message, put_off, rest, running, write

from commitlake import config
from commitlake.clients.consumer import assignment, overview
from commitlake.clients.consumer.arguments import start_ms
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.group import FOLDER, Beats, Group, kept_receipts, kept_state, log_name
from commitlake.clients.consumer.receipts import Receipts
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.coordinator.metrics.collect import of_consumers
from commitlake.errors import ConsumerError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import opened
from commitlake.reading.table import Snapshot
from commitlake.tools import doctor
from commitlake.tools.cli import consumers
from commitlake.tools.cli.app import app
from commitlake.tools.findings import Diagnosis


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    place = tmp_path / "warehouse"
    write(place, "orders", [message(n, batch=n, queue=n % 4) for n in range(40)])
    return place


def rebalanced(state: assignment.State, *names: str) -> assignment.State:
    for name in names:
        state = assignment.rebalance(state, name, (), range(4), (), {})
    return state


def left(warehouse: Path) -> dict[str, str]:
    rows = unfinished(config.from_mapping({"warehouse": str(warehouse)}), "orders", "points").to_pylist()
    return {row["message_id"]: row["state"] for row in rows}


def version(warehouse: Path, group: str = "points") -> int:
    return DeltaTable(f"{warehouse}_receipts/{FOLDER}/{log_name(group, 'orders')}").version()


def command(warehouse: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        app(["groups", f"--set=warehouse={warehouse}", *words])
    return ended.value.code, capsys.readouterr().out


@contextmanager
def reading(members: Sequence[Any]) -> Iterator[list[str]]:
    """Consumers that each read in a thread, and are stopped at the end; what they have handled."""
    found: list[str] = []

    def handle(each: Any) -> None:
        each.done()
        found.append(each.message_id)

    with ExitStack() as stack:
        for member in members:
            stack.enter_context(running(member, handle))
        yield found
        for member in members:
            member.stop()


def test_instances_that_have_nothing_to_do_write_no_commits(warehouse: Path) -> None:
    members = [consumer(warehouse, lease="4s") for _ in range(3)]
    with reading(members) as found:
        wait_for(lambda: len(found) == 40)
        time.sleep(5)
        before = version(warehouse)
        time.sleep(4)
        assert version(warehouse) == before, "five times a fifth of the lease"
        write(warehouse, "orders", [message(100 + queue, batch=100, queue=queue) for queue in range(4)])
        wait_for(lambda: len(found) == 44)
    assert len(set(found)) == 44


def beats(place: Path) -> set[str]:
    """Instances that give signs of life."""
    return {each.name for each in (place / "_beats").iterdir()}


def test_instances_beyond_the_queues_stand_by_and_write_nothing(warehouse: Path) -> None:
    """All begin at one moment; those that read commit, as do the few who join beside each other."""
    members = [consumer(warehouse, lease="5s") for _ in range(24)]
    place = Path(f"{warehouse}_receipts/{FOLDER}/{log_name('points', 'orders')}")
    group = Group(f"{warehouse}_receipts", "points", "orders")
    with reading(members) as found:
        wait_for(lambda: len({each["owner"] for each in (group.read() or {"queues": {}})["queues"].values()}) == 4, 60)
        wait_for(lambda: beats(place) == set((group.read() or {})["members"]), 20)
        assert version(warehouse) < 30
        reads = {each._subscriptions[0]._member._me: each for each in members}
        name = next(iter((group.read() or {})["members"]))
        reads[name].stop()
        wait_for(lambda: len(now := (group.read() or {})["members"]) == 4 and name not in now, 60)
    assert sorted(found) == sorted(f"m{n}" for n in range(40))


EARLIER = ["groups", f"{FOLDER}/{log_name('points', 'orders')}"]
"""Where earlier versions kept the state as one row: at first that of all groups in one table."""


def write_earlier(warehouse: Path, place: str) -> None:
    """Of an instance that has come to message 29, and was not stopped."""
    cursor = Cursor((29, 0, 29, 0)).to_json()
    queues = {str(queue): {"owner": "gone", "cursor": cursor} for queue in range(4)}
    row = {
        "consumer_group": "points",
        "topic": "orders",
        "state": json.dumps({"members": {"gone": 7}, "queues": queues}),
    }
    partitions = ["consumer_group", "topic"] if place == "groups" else []
    rows = pa.Table.from_pylist([row])
    write_deltalake(f"{warehouse}_receipts/{place}", rows, partition_by=partitions, mode="overwrite")


@pytest.mark.parametrize("place", EARLIER)
def test_a_group_goes_on_where_the_table_of_earlier_versions_says(warehouse: Path, place: str) -> None:
    write_earlier(warehouse, place)
    state = kept_state(f"{warehouse}_receipts", "points", "orders")
    assert state is not None
    assert (state["members"], len(assignment.cursors(state))) == ({}, 4)
    assert sorted(rest(warehouse)) == [f"m{n}" for n in range(30, 40)]
    assert rest(warehouse) == []
    assert len(rest(warehouse, group="others")) == 40


@pytest.mark.parametrize("place", EARLIER)
def test_a_group_that_only_earlier_versions_knew_can_be_forgotten(warehouse: Path, place: str) -> None:
    write_earlier(warehouse, place)
    Group(f"{warehouse}_receipts", "points", "orders").forget()
    assert len(rest(warehouse)) == 40


def test_an_instance_of_an_earlier_version_moves_no_cursor_of_this_one(warehouse: Path) -> None:
    write_earlier(warehouse, EARLIER[1])
    stale = DeltaTable(f"{warehouse}_receipts/{EARLIER[1]}")
    assert len(rest(warehouse, most=5)) == 5
    row = pa.Table.from_pylist([{"consumer_group": "points", "topic": "orders", "state": "{}"}])
    for _ in range(2):
        with pytest.raises(DeltaError):
            write_deltalake(stale, row, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))
        stale.update_incremental()
    assert len(rest(warehouse)) == 5


LEASES = assignment.rebalance(
    assignment.rebalance({"members": {}, "queues": {}}, "a", (), range(4), (), {}), "b", (), (), (), {}
)
CHANGES: dict[str, Any] = {
    "a goes on": lambda s: assignment.rebalance(s, "a", (), range(4), range(4), {0: "a1", 2: "a1"}),
    "a releases": lambda s: assignment.rebalance(s, "a", (), range(4), (), {1: "a2"}),
    "b goes on": lambda s: assignment.rebalance(s, "b", (), range(4), range(4), {1: "b1", 3: "b1"}),
    "a finds a queue": lambda s: assignment.rebalance(s, "a", (), range(6), range(6), {}),
    "b finds a queue": lambda s: assignment.rebalance(s, "b", (), range(6), range(6), {}),
    "a finds b gone": lambda s: assignment.rebalance(s, "a", ("b",), range(4), range(4), {}),
    "a leaves": lambda s: assignment.leave(s, "a", {0: "a3"}),
    "c joins": lambda s: assignment.rebalance(s, "c", (), range(4), range(4), {}),
    "d joins": lambda s: assignment.rebalance(s, "d", (), range(4), range(4), {}),
    "a rewind": lambda s: assignment.rewound(s, dict.fromkeys(range(4), "begin"), 7, "table"),
}


def at_one_moment(ours: Group, others: Group, first: Any, second: Any, *, does_read: bool) -> None:
    """Make one change; while it is thought about, another instance makes the second one."""
    pending = [second]

    def meanwhile(state: Any) -> Any:
        if pending:
            others.change(pending.pop())
            if does_read:
                ours.read()
        return first(state)

    ours.change(meanwhile)


@pytest.mark.parametrize("begin", [rebalanced(LEASES, "a"), rebalanced(LEASES, "a", "b")], ids=["free", "shared"])
def test_two_changes_at_one_moment_are_as_one_after_the_other(tmp_path: Path, begin: assignment.State) -> None:
    """A lease that was taken fences who had it, and those of others are left alone; also where a change reads again."""
    ours, others = (Group(str(tmp_path), "g", "t") for _ in range(2))
    for number, names in enumerate(itertools.permutations(CHANGES, 2)):
        first, second = map(CHANGES.__getitem__, names)
        ours.change(lambda _: begin)
        at_one_moment(ours, others, first, second, does_read=number % 2 == 0)
        orders = [first(second(begin)), second(first(begin))]
        assert json.loads(json.dumps(ours.read())) in json.loads(json.dumps(orders)), names


def test_members_that_move_their_cursors_do_not_wait_for_each_other(tmp_path: Path) -> None:
    a, b = (Group(str(tmp_path), "g", "t") for _ in range(2))
    a.change(lambda _: rebalanced(LEASES, "a", "b"))
    asked = []

    def goes_on(state: Any) -> Any:
        asked.append(state)
        return CHANGES["a goes on"](state)

    at_one_moment(a, b, goes_on, CHANGES["b goes on"], does_read=False)
    assert len(asked) == 1
    queues = (b.read() or {})["queues"]
    assert [queues[str(queue)]["cursor"] for queue in range(4)] == ["a1", "b1", "a1", "b1"]


@pytest.mark.parametrize("group", ["o'brien", "a/b", "..", "50%", "é" * 40, "x" * 240, "a\nb", " "])
def test_a_group_has_any_name(warehouse: Path, group: str) -> None:
    assert len(rest(warehouse, group=group)) == 40
    assert rest(warehouse, group=group) == []


def test_signs_of_life_reach_a_store_that_is_no_directory(tmp_path: Path) -> None:
    ours, others = Beats(str(tmp_path)), Beats(str(tmp_path))
    ours._files = fs.PyFileSystem(DeltaStorageHandler(str(tmp_path), {}))
    ours.show("a")
    first = others.seen()
    ours.show("a")
    assert others.seen() != first != {}
    assert ours.seen() == others.seen()
    ours.end("a")
    ours.end("a")
    assert others.seen() == ours.seen() == {}


def test_a_command_shows_how_far_groups_are_behind(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(warehouse, capsys)[0] == 3
    rest(warehouse, most=10)
    with consumer(warehouse, group="others", follow=False) as messages:
        for each in messages:
            each.retry(max_attempts=1) if each.message_id == "m3" else each.retry("1h")
    code, out = command(warehouse, capsys, "--json")
    rows = {row["consumer_group"]: row for row in map(json.loads, out.splitlines())}
    assert (code, list(rows)) == (0, ["others", "points"])
    assert (rows["points"]["behind"], rows["points"]["oldest_visible_at"]) == (30, "2026-01-01T00:00:00.010Z")
    assert (rows["points"]["members"], rows["points"]["queues"], rows["points"]["topic"]) == (0, 4, "orders")
    assert (rows["others"]["behind"], rows["others"]["waiting"], rows["others"]["dead"]) == (0, 39, 1)


def test_metrics_tell_how_far_groups_are_behind(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest(warehouse, most=10)
    rest(warehouse, group="others")
    conf = config.from_mapping({"warehouse": str(warehouse)})
    behind, oldest, members = of_consumers(conf)
    assert {each.labels["consumer_group"]: each.value for each in members.samples} == {"others": 0, "points": 0}
    values = {each.labels["consumer_group"]: each.value for each in behind.samples}
    assert values == {"others": 0, "points": 30}
    ages = {each.labels["consumer_group"]: each.value for each in oldest.samples}
    assert ages["others"] == 0
    assert ages["points"] == pytest.approx(time.time() - 1_767_225_600.010, abs=10)
    monkeypatch.setattr(overview, "_EXACT_ROWS", 0)
    assert {lag.group: lag.behind for lag in overview.lags(conf)} == {"others": 40, "points": 40}


def test_a_member_that_was_killed_counts_no_more_and_a_group_of_nobody_is_told(warehouse: Path) -> None:
    """It is kept as one until another instance misses it."""
    conf = config.from_mapping({"warehouse": str(warehouse)})

    def diagnosed() -> Diagnosis:
        with opened(conf.warehouse) as tables:
            return doctor._groups(tables, conf)

    assert diagnosed().detail == "0 groups, at most 0 messages behind"
    with consumer(warehouse) as messages:
        next(messages)
        assert [(lag.members, lag.behind) for lag in overview.lags(conf)] == [(1, 40)]
        assert (diagnosed().is_well, diagnosed().detail) == (True, "1 group, at most 40 messages behind")
    state = Group(conf.receipts_place, "points", "orders")
    state.change(lambda before: {**(before or {}), "members": {"killed": 3}})
    state.beats.show("killed")
    (beat,) = Path(conf.receipts_place).rglob("_beats/killed")
    os.utime(beat, (time.time() - 7, time.time() - 7))
    assert [lag.members for lag in overview.lags(conf)] == [0]
    told = (
        r"points has not read 40 messages of orders, the oldest for \d+ s; no instance of it runs: start one, or "
        "forget the group with `commitlake groups --topic orders --group points --delete`"
    )
    assert not diagnosed().is_well and re.match(told, diagnosed().detail)


def test_a_group_that_can_not_be_read_takes_no_figures_of_others_away(warehouse: Path) -> None:
    rest(warehouse, most=10)
    rest(warehouse, group="broken")
    for file in Path(f"{warehouse}_receipts/{FOLDER}/{log_name('broken', 'orders')}").rglob("*.parquet"):
        file.unlink()
    behind, *_ = of_consumers(config.from_mapping({"warehouse": str(warehouse)}))
    assert [each.value for each in behind.samples] == [30]


def test_a_topic_that_can_not_be_read_is_not_0_behind(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest(warehouse, most=10)
    (warehouse / "topics" / "orders" / "_delta_log" / f"{1:020}.json").write_text("{torn")
    behind, oldest, _ = of_consumers(config.from_mapping({"warehouse": str(warehouse)}))
    assert (behind.samples, oldest.samples) == ([], [])
    (row,) = map(json.loads, command(warehouse, capsys, "--json")[1].splitlines())
    assert (row["behind"], row["oldest_visible_at"]) == (None, None)


@pytest.mark.parametrize(
    ("where", "expected", "told"),
    [
        ("first", 40, "its first message"),
        ("newest", 0, "the next message"),
        ("2026-01-01T00:00:00.030", 10, "what became visible at 2026-01-01T00:00:00.030Z or later"),
        ("2026-01-01T01:00:00.030+01:00", 10, "what became visible at 2026-01-01T00:00:00.030Z or later"),
        ("1767225600035", 5, "what became visible at 2026-01-01T00:00:00.035Z or later"),
    ],
)
def test_a_group_goes_on_where_it_is_rewound_to(
    warehouse: Path, capsys: pytest.CaptureFixture[str], where: str, expected: int, told: str
) -> None:
    rest(warehouse, most=20)
    given = ["--topic=orders", "--group=points", f"--rewind={where}"]
    assert command(warehouse, capsys, *given) == (
        0,
        f"within some seconds the group points continues in orders with {told}\n",
    )
    assert len(rest(warehouse)) == expected


def test_groups_shows_those_that_are_asked_for(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest(warehouse)
    for words, code in ((["--group=points"], 0), (["--topic=orders"], 0), (["--group=nope"], 3), (["--topic=no"], 3)):
        assert command(warehouse, capsys, "--json", *words)[0] == code
    with pytest.raises(ConsumerError, match="group 'nope' never read the topic orders"):
        app(["send-again", "orders", "--group=nope", f"--set=warehouse={warehouse}"])


def test_a_time_that_makes_no_sense_is_told_in_words_of_the_command() -> None:
    with pytest.raises(
        ConsumerError, match=r"^--rewind: 'yesterday' is not allowed; give first, newest, 2h for two hours ago, ms"
    ):
        consumers.moment("yesterday")
    with pytest.raises(ConsumerError, match=r"^--rewind: '1767225600' is not allowed; .* ms since epoch \(13 digits\)"):
        consumers.moment("1767225600")
    with pytest.raises(ConsumerError, match=r"^--rewind: 2199-01-01 .* lies ahead; give newest"):
        consumers.moment("2199-01-01")
    with pytest.raises(ConsumerError, match=r"^--rewind: '0001-01-01T00:00\+14:00' is not allowed"):
        consumers.moment("0001-01-01T00:00+14:00")
    assert consumers.moment("0") == "first"
    moment = consumers.moment("2h")
    assert isinstance(moment, datetime)
    assert timedelta(hours=2) <= datetime.now(UTC) - moment < timedelta(hours=2, seconds=30)
    with pytest.raises(ConsumerError, match=r"^start: 1767225600 is not allowed; .* ms since epoch \(13 digits\)"):
        start_ms(1_767_225_600)


def test_a_retry_of_the_second_reading_outranks_what_the_first_one_gave_up(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts = kept_receipts(f"{warehouse}_receipts", "points", "orders")
    for _ in range(4):
        put_off(warehouse, "m3", after="1ms", most=4)
        time.sleep(0.01)
    assert [row["attempt"] for row in receipts.dead()] == [4]
    command(warehouse, capsys, "--topic=orders", "--group=points", "--rewind=first")
    assert len(left(warehouse)) == 40
    put_off(warehouse, "m3", after="1s")
    assert [row["message_id"] for row in receipts.waiting()] == ["m3"]
    assert left(warehouse) == {"m3": "RETRY"}
    time.sleep(1)
    assert rest(warehouse) == ["m3"]
    assert rest(warehouse) == []
    assert left(warehouse) == {}


def test_two_rewinds_at_one_moment_begin_rounds_of_their_own(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one's round must outrank what was given up in the first one's reading."""
    rest(warehouse)
    conf = config.from_mapping({"warehouse": str(warehouse)})
    change = Group.change

    def rewind_first(self: Group, to: Any) -> Any:
        monkeypatch.setattr(Group, "change", change)
        overview.rewind(conf, "orders", "points", "first")
        put_off(warehouse, "m3", most=1)
        return change(self, to)

    monkeypatch.setattr(Group, "change", rewind_first)
    overview.rewind(conf, "orders", "points", "first")
    put_off(warehouse, "m3", after="1ms")
    time.sleep(0.01)
    assert left(warehouse) == {"m3": "RETRY"}
    assert rest(warehouse) == ["m3"]


def test_what_waits_before_the_place_of_a_rewind_still_comes(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_off(warehouse, "m3", "m33", most=1)
    command(warehouse, capsys, "--topic=orders", "--group=points", "--rewind=2026-01-01T00:00:00.030")
    assert len(rest(warehouse)) == 10
    receipts = kept_receipts(f"{warehouse}_receipts", "points", "orders")
    receipts.send_again(receipts.dead(), "mended", now_ms())
    assert rest(warehouse) == ["m3"]
    assert rest(warehouse) == []


def test_a_rewind_that_dies_half_way_loses_nothing_that_waits(
    warehouse: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(warehouse, follow=False) as messages:
        for each in messages:
            each.retry(max_attempts=1) if each.message_id == "m3" else each.retry("1h")

    def away(*_: object) -> None:
        raise OSError("the store is away")

    for place, name in ((Group, "change"), (Receipts, "close")):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(place, name, away)
            overview.rewind(config.from_mapping({"warehouse": str(warehouse)}), "orders", "points", "first")
        kept = kept_receipts(f"{warehouse}_receipts", "points", "orders")
        assert (len(kept.waiting()), len(kept.dead())) == (39, 1)
    assert len(rest(warehouse)) == 40


@pytest.mark.parametrize("fails", [False, True])
def test_instances_that_run_follow_a_rewind_also_when_their_turn_after_its_commit_fails(
    warehouse: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    failed = threading.Event()
    tidy = Group._tidy

    def fails_once(self: Group) -> None:
        if (
            fails
            and rewound.is_set()
            and threading.current_thread().name.startswith("commitlake-syncs")
            and not failed.is_set()
        ):
            failed.set()
            raise OSError("the store is away")
        tidy(self)

    rewound = threading.Event()
    monkeypatch.setattr(Group, "_tidy", fails_once)
    with reading([consumer(warehouse)]) as found:
        wait_for(lambda: len(found) == 40)
        time.sleep(1.5)
        rewound.set()
        command(warehouse, capsys, "--topic=orders", "--group=points", "--rewind=first")
        wait_for(lambda: len(found) == 80)
    assert failed.is_set() == fails


def test_what_was_sent_again_and_done_stays_done_after_a_rewind(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_off(warehouse, "m3", most=1)
    receipts = kept_receipts(f"{warehouse}_receipts", "points", "orders")
    receipts.send_again(receipts.dead(), "mended", now_ms())
    assert rest(warehouse) == ["m3"]
    command(warehouse, capsys, "--topic=orders", "--group=points", "--rewind=newest")
    assert rest(warehouse) == []
    assert kept_receipts(f"{warehouse}_receipts", "points", "orders").waiting() == []


def test_a_letter_of_a_queue_that_has_no_rows_any_more_does_not_stop_a_rewind(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_off(warehouse, "m3", most=1)
    table = DeltaTable(str(warehouse / "topics" / "orders"))
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.delete("queue_id = 3")
    assert command(warehouse, capsys, "--topic=orders", "--group=points", "--rewind=first")[0] == 0
    assert len(rest(warehouse)) == 30
    assert [row["message_id"] for row in kept_receipts(f"{warehouse}_receipts", "points", "orders").dead()] == ["m3"]


def test_a_group_is_forgotten_when_nobody_is_alive(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--topic=orders", "--group=points", "--delete"]
    with pytest.raises(ConsumerError, match="never read"):
        app(["groups", f"--set=warehouse={warehouse}", *given])
    with consumer(warehouse) as messages:
        next(messages).done()
        with pytest.raises(ConsumerError, match="stop them first"):
            app(["groups", f"--set=warehouse={warehouse}", *given])
    state = Group(f"{warehouse}_receipts", "points", "orders")
    state.change(lambda kept: {**(kept or {}), "members": {"killed": 1.0}})
    assert command(warehouse, capsys, *given)[0] == 0
    assert command(warehouse, capsys)[0] == 3
    assert len(rest(warehouse)) == 40


@pytest.mark.parametrize("words", [["--delete"], ["--rewind=first", "--topic=orders"]])
def test_a_change_names_a_group_and_a_topic(warehouse: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["groups", f"--set=warehouse={warehouse}", *words])
    assert ended.value.code == 2


def test_where_changes_of_the_state_are_slow_receipts_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(1_000)])
    changes: list[Any] = []
    replace = Group._replace

    def slow(self: Group, before: Any, after: Any) -> None:
        changes.append(after)
        time.sleep(0.5)
        replace(self, before, after)

    monkeypatch.setattr(Group, "_replace", slow)
    until = time.monotonic() + 12
    count = 0
    with consumer(tmp_path, lease="15s") as messages:
        while time.monotonic() < until:
            next(messages).done()
            count += 1
            time.sleep(0.02)
        written = DeltaTable(f"{tmp_path}_receipts/receipts").version()
        assert written > 2 * len(changes)
    assert next(consumer(tmp_path)).message_id == f"m{count}", "the cursor is written at the end"


def test_groups_of_a_process_share_files_commits_and_threads(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one 500 groups would open each file 500 times, write as many commits, and have a thread each."""
    opened, paths = Snapshot.open, list[str]()
    monkeypatch.setattr(Snapshot, "open", lambda table, path: paths.append(path) or opened(table, path))  # type: ignore[func-returns-value]
    with ExitStack() as stack:
        groups = [stack.enter_context(consumer(warehouse, group=f"g{number}", lease="60s")) for number in range(40)]
        found = [next(group) for group in groups for _ in range(40)]
        rows = [path for path in paths if path.endswith(".parquet") and "queue_id=" in path]
        assert len(rows) == len(set(rows)) == 4
        names = [each.name for each in threading.enumerate()]
        assert names.count("commitlake-consumer-receipts") == 1
        assert len([name for name in names if name.startswith("commitlake")]) < len(groups)
        for each in found:
            each.done()
        place = f"{warehouse}_receipts/receipts"
        wait_for(lambda: len(DeltaTable(place).to_pyarrow_table()) == len(found))
        assert DeltaTable(place).version() < len(groups)


def test_of_many_who_ask_for_the_newest_version_one_looks_for_all(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[float](), Snapshot._refresh

    def slow(table: Snapshot) -> bool:
        looks.append(time.monotonic())
        time.sleep(0.2)
        return look(table)

    monkeypatch.setattr(Snapshot, "_refresh", slow)
    table = Snapshot.shared(f"{warehouse}/topics/orders")
    assert Snapshot.shared(f"{warehouse}/topics/orders") is table
    looks.clear()
    barrier = threading.Barrier(20)

    def ask() -> None:
        barrier.wait(60)
        table.refresh()

    write(warehouse, "orders", [message(100, batch=100)])
    before = table.files().num_rows
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: ask(), range(20)))
    assert 1 <= len(looks) < 10
    assert table.files().num_rows == before + 1
    looks.clear()
    assert not table.refresh(time.monotonic() - 60)
    assert looks == []
    assert not table.refresh()
    assert len(looks) == 1
