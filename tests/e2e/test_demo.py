"""`./spark-submit.sh` without arguments: it ends by itself, all agree, Ctrl-C leaves nothing; on odd machines too."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from commitlake.tools.demo.shop import DOOMED, HUNG, STUCK

ROOT = Path(__file__).parents[2]

# About a minute on two idle cores; a loaded machine needs several times as long.
pytestmark = [pytest.mark.timeout(900), pytest.mark.short]


def start(place: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(ROOT / "spark-submit.sh"), "--dir", str(place), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def running(place: Path) -> list[str]:
    """Command lines that name the demo's directory: the driver, its JVM, the broker, the shops."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if str(place) in command:
            found.append(command)
    return found


def await_end(place: Path, seconds: float = 15) -> list[str]:
    deadline = time.monotonic() + seconds
    while running(place) and time.monotonic() < deadline:
        time.sleep(0.2)
    return running(place)


def query(database: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as db:
        return [row[0] for row in db.execute(sql)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that the browser of this module's programs adds each address to."""
    place = tmp_path_factory.mktemp("browser")
    browser = place / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >>{place}/opened\n')
    browser.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROWSER", f"{browser} %s")
        yield place / "opened"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, opened: Path) -> tuple[Path, str]:
    """The place and the output of a demo that has ended, and that has opened its report."""
    place = tmp_path_factory.mktemp("demo") / "a place"
    process = start(place, "--open")
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return place, printed


def test_orders_their_topic_table_and_the_points_agree(played: tuple[Path, str]) -> None:
    place, _ = played
    paid = query(place / "orders.db", "SELECT id FROM orders WHERE state = 'PAID'")
    seen = DeltaTable(str(place / "warehouse/topics/orders")).to_pandas()["keys"].tolist()
    booked = query(place / "points.db", "SELECT order_id FROM work")
    shipped = query(place / "logistics.db", "SELECT order_id FROM work")
    assert len(paid) > 60
    assert sorted(paid) == sorted(seen) == sorted(booked) == sorted(shipped)
    receipts = DeltaTable(str(place / "warehouse_receipts/receipts")).to_pandas()
    retried = receipts[(receipts["consumer_group"] == "logistics") & (receipts["state"] == "RETRY")]
    assert len(retried) > 3
    assert len(receipts[receipts["state"] == "DONE"].drop_duplicates(["consumer_group", "keys"])) == 2 * len(paid)


def test_every_kind_of_end_happens(played: tuple[Path, str]) -> None:
    place, _ = played
    rows = DeltaTable(str(place / "warehouse/transactions")).to_pandas()
    ends = Counter(zip(rows["state"], rows["reason"], strict=True))
    kinds = [(state, reason) for state in ("COMMITTED", "ROLLED_BACK") for reason in ("DIRECT", "CHECK")]
    assert set(ends) == {*kinds, ("DISCARDED", "CHECK_MAX")}
    assert ends["DISCARDED", "CHECK_MAX"] == 1
    assert len(rows) == len(DeltaTable(str(place / "warehouse/half")).to_pandas())


def test_the_coordinator_is_killed_in_the_middle_and_a_standby_takes_over(played: tuple[Path, str]) -> None:
    place, printed = played
    epochs = DeltaTable(str(place / "warehouse/epochs")).to_pandas()["epoch"]
    assert sorted(epochs) == [1, 2]
    story = ["is ready", "starting a standby", "killed the coordinator", "took over: ", "all is well", "all right"]
    assert sorted(story, key=printed.index) == story
    assert re.search(r"the standby took over: the first new rows came after \d+\.\d s", printed)


def test_one_transaction_stands_in_two_topics(played: tuple[Path, str]) -> None:
    place, _ = played
    (shipped,) = DeltaTable(str(place / "warehouse/topics/shipments")).to_pandas()["transaction_id"]
    assert shipped in set(DeltaTable(str(place / "warehouse/topics/orders")).to_pandas()["transaction_id"])


def test_the_orders_of_the_killed_shop_are_answered_by_the_others(played: tuple[Path, str]) -> None:
    place, printed = played
    assert f"killed {DOOMED}" in printed
    rows = (
        DeltaTable(str(place / "warehouse/half"))
        .to_pandas()
        .merge(DeltaTable(str(place / "warehouse/transactions")).to_pandas(), on=["message_id", "topic"])
    )
    stuck = rows[rows["keys"].isin(HUNG)]
    assert len(stuck) == STUCK
    assert set(stuck["reason"]) == {"CHECK"}
    assert set(stuck["state"]) == {"COMMITTED", "ROLLED_BACK"}
    answered = {line.split(" answers for ")[1] for line in printed.splitlines() if " answers for " in line}
    answers = {"COMMITTED": "COMMIT", "ROLLED_BACK": "ROLLBACK"}
    ended = zip(stuck["keys"], stuck["state"], strict=True)
    assert {f"{order}: {answers[state]}" for order, state in ended} == answered


def test_the_picture_of_an_order_has_the_times_of_the_tables(played: tuple[Path, str]) -> None:
    place, printed = played
    head, *lines = printed[printed.index("what happened to ") :].split("\n\n")[0].splitlines()
    order = head.split()[3].rstrip(",")
    assert order in HUNG
    drawn = re.findall(r"^  (.+?) +(\d+\.\d) s  -*o$", "\n".join(lines), re.MULTILINE)
    assert [float(at) for _, at in drawn] == sorted(float(at) for _, at in drawn)
    steps: dict[str, float] = {}
    for said, at in drawn:
        steps.setdefault(said, float(at))  # a check may be sent again, and answered again
    ends = ["half message", f"{DOOMED} killed", "check 1", "answer COMMIT", "visible"]
    assert [said for said in steps if said in ends] == ends
    seen = DeltaTable(str(place / "warehouse/topics/orders")).to_pandas().set_index("keys").loc[order]
    assert steps["visible"] == pytest.approx((seen["visible_at"] - seen["stored_at"]).total_seconds(), abs=0.06)


def test_a_batch_and_a_delayed_message_arrive(played: tuple[Path, str]) -> None:
    place, _ = played
    assert len(DeltaTable(str(place / "warehouse/topics/prices")).to_pandas()) == 3
    (reminder,) = DeltaTable(str(place / "warehouse/topics/reminders")).to_pandas().itertuples()
    assert (reminder.visible_at - reminder.stored_at).total_seconds() >= 10


def test_the_report_is_readable_and_without_stack_traces(played: tuple[Path, str]) -> None:
    place, printed = played
    assert "all right" in printed
    assert f"{place}/warehouse" in printed
    assert "Exception" not in printed
    assert " WARN " not in printed
    assert max(map(len, printed.splitlines())) < 300


def test_the_command_that_shows_the_rows_works(played: tuple[Path, str]) -> None:
    place, printed = played
    line = printed.split("for example:\n")[1].splitlines()[0]
    shown = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False)
    rows = len(DeltaTable(str(place / "warehouse/topics/orders")).to_pandas())
    assert f"[{rows} rows x " in shown.stdout, shown.stderr


def test_the_three_commands_at_the_end_work(played: tuple[Path, str], opened: Path) -> None:
    place, printed = played
    commands = printed.split("try next:\n")[1].splitlines()
    said = [subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout for line in commands]
    assert len(said) == 3
    assert "COMMITTED" in said[0]
    assert "CHECK_MAX" in said[1]
    report = place / "report.html"
    assert opened.read_text().split() == [report.as_uri()] * 2  # by --open, and by the third command
    assert "commitlake" in report.read_text().lower()


def test_nothing_is_left_running(played: tuple[Path, str]) -> None:
    assert await_end(played[0]) == []


@pytest.mark.soak
def test_ctrl_c_in_the_middle_of_a_second_run_stops_everything(played: tuple[Path, str]) -> None:
    place, _ = played
    process = start(place)
    assert process.stdout is not None
    for line in process.stdout:
        if f"killed {DOOMED}" in line:
            break
    assert len(running(place)) >= 4
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate()
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert await_end(place) == []


NO_IPV4 = (
    "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add fd00::1/64 dev v0 nodad "
    "&& ip link set v0 up && ip link set v1 up"
)
"""But that of the loopback, which machines have that reach others by IPv6 only."""
READ_ONLY = 'mount -t tmpfs -o ro tmpfs "$TMPDIR"'
FULL = 'mount -t tmpfs -o size=1m tmpfs "$TMPDIR"'
NO_PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}


def inside(namespace: str, first: str) -> list[str]:
    """The begin of a command that runs in a namespace of its own, after another; skips where that is not allowed."""
    prefix = ["unshare", f"--{namespace}", "sh", "-c", f'{first} && exec "$@"', "sh"]
    if (tried := subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(tried.stderr)
    return prefix


def play(place: Path, prefix: Sequence[str] = (), without: str = "", **variables: str) -> tuple[int, str]:
    """Runs the demo; returns its exit code and what it printed."""
    environment: Mapping[str, str] = {name: value for name, value in os.environ.items() if name != without} | variables
    command = [*prefix, str(ROOT / "spark-submit.sh"), "--dir", str(place)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return ended.returncode, ended.stdout.decode(errors="replace")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, which a test puts something else upon."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("west", {"TZ": "America/Sao_Paulo"}),
        ("a quarter of an hour", {"TZ": "Asia/Kathmandu"}),
        ("a proxy that is not there", NO_PROXY),
        ("заказы", {"LANG": "C", "LC_ALL": "C"}),
    ],
)
@pytest.mark.soak
def test_the_demo_plays_whatever_the_environment_says(tmp_path: Path, name: str, variables: dict[str, str]) -> None:
    code, printed = play(tmp_path / name, **variables)
    assert code == 0, printed
    assert "all is well" in printed


@pytest.mark.soak
def test_the_demo_plays_without_a_directory_for_temporary_files_being_named(tmp_path: Path) -> None:
    code, printed = play(tmp_path / "demo", without="TMPDIR")
    assert code == 0, printed


@pytest.mark.soak
def test_the_demo_plays_where_other_machines_are_reached_by_ipv6_only(tmp_path: Path) -> None:
    code, printed = play(tmp_path / "demo", inside("net", NO_IPV4))
    assert code == 0, printed


@pytest.mark.usefixtures("temporary")
@pytest.mark.soak
def test_the_demo_plays_where_another_directory_for_temporary_files_stands_in(tmp_path: Path) -> None:
    """As Python does it: where $TMPDIR can't be written, /tmp is taken."""
    code, printed = play(tmp_path / "demo", inside("mount", READ_ONLY))
    assert code == 0, printed


@pytest.mark.soak
def test_a_full_directory_for_temporary_files_is_refused_in_a_line(tmp_path: Path, temporary: Path) -> None:
    begun = time.monotonic()
    code, printed = play(tmp_path / "demo", inside("mount", FULL))
    assert code == 1, printed
    assert f"TMPDIR: 1 MiB free on the disk of {temporary}; allowed is at least 64 MiB free" in printed
    assert len(printed.splitlines()) == 1
    assert time.monotonic() - begun < 30
