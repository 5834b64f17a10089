"""Questions without Spark and the page about the last hours, against what Spark's ledger and audit say."""

from __future__ import annotations

import html
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.support.lake import ended
from tests.support.story import Story
from typer.testing import CliRunner

from commitlake.protocol.durations import HOUR_MS
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted, history
from commitlake.spark import session
from commitlake.tools.audit import ledger
from commitlake.tools.cli import bulk
from commitlake.tools.cli.app import app
from commitlake.tools.report import charts
from commitlake.tools.report.page import _length

TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
LISTED = [
    *("transaction_id", "producer_group", "topic", "state", "reason"),
    *("checks", "queue", "queue_offset", "stored_at", "age_ms"),
]


def ask(story: Story, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """A command's exit code, and its objects."""
    done = CliRunner().invoke(app, [*words, "--json", f"--set=warehouse={story.lake.warehouse}"])
    return done.exit_code, [json.loads(line) for line in done.output.splitlines()]


def expected(story: Story) -> dict[tuple[int, int], tuple[Any, ...]]:
    """State, reason and checks of every first half message, from the tables row by row."""
    ends: dict[tuple[int, int], dict[str, Any]] = {}
    for row in sorted(story.lake.rows("transactions"), key=lambda row: row["round"]):
        ends[row["queue"], row["half_offset"]] = row
    pending = {
        (row["queue"], row["queue_offset"]): ("PENDING", None, row["checks"])
        for row in ledger.pending(story.spark, str(story.lake.warehouse)).collect()
    }
    firsts = [
        (row["queue"], row["queue_offset"])
        for row in story.lake.rows("half")
        if (row["queue"], row["queue_offset"]) == (row["first_queue"], row["first_offset"])
    ]
    return {at: pending.get(at) or (ends[at]["state"], ends[at]["reason"], ends[at]["checks"]) for at in firsts}


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["queue"], row["queue_offset"]


def test_a_list_has_every_transaction_in_its_state(story: Story) -> None:
    code, rows = ask(story, "tx", "list", "--limit=1000")
    assert code == 0
    assert list(rows[0]) == LISTED
    assert {
        (row["queue"], row["queue_offset"]): (row["state"], row["reason"], row["checks"]) for row in rows
    } == expected(story)
    assert rows == sorted(rows, key=lambda row: row["stored_at"], reverse=True)
    assert {row["state"] for row in rows} == {"PENDING", "COMMITTED", "ROLLED_BACK", "DISCARDED"}


def test_filters_choose_and_a_limit_cuts(story: Story) -> None:
    everything = ask(story, "tx", "list", "--limit=1000")[1]
    for state in ("PENDING", "COMMITTED", "ROLLED_BACK", "DISCARDED"):
        rows = ask(story, "tx", "list", "--state", state, "--limit=1000")[1]
        assert len(ask(story, "tx", "list", "--state", state.lower(), "--limit=1000")[1]) == len(rows)
        assert [_place(row) for row in rows] == [_place(row) for row in everything if row["state"] == state]
    assert len(ask(story, "tx", "list", "--limit=3")[1]) == 3
    assert len(ask(story, "tx", "list", "--state=COMMITTED", "--limit=3")[1]) == 3
    reasons = {row["reason"] for row in ask(story, "tx", "list", "--reason=CHECK_MAX")[1]}
    assert reasons == {"CHECK_MAX"}
    assert ask(story, "tx", "list", "--older-than=9h") == (3, [])
    assert ask(story, "tx", "list", "--since=1ms") == (3, [])
    assert ask(story, "tx", "list", "--group=nobody") == (3, [])
    some = everything[0]["transaction_id"]
    assert [row["transaction_id"] for row in ask(story, "tx", "list", "--where", f"transaction_id = '{some}'")[1]] == [
        some
    ]
    assert ask(story, "tx", "hanging")[0] in (0, 3)
    done = CliRunner().invoke(app, ["tx", "list", "--where", "no_such = 1", f"--set=warehouse={story.lake.warehouse}"])
    assert "--where: " in str(done.exception)


def test_a_history_has_all_that_sparks_ledger_has_and_what_is_visible(story: Story, spark: SparkSession) -> None:
    seen = {
        (row["source_queue"], row["source_offset"])
        for row in story.lake.rows("topics/orders")
        if row["source"] == "half"
    }
    ids = sorted({row["transaction_id"] for row in story.lake.rows("half")})
    wanted = expected(story)
    for transaction_id in ids[::4]:
        with opened(str(story.lake.warehouse)) as tables:
            told = history(tables, transaction_id)
        assert told is not None
        rows = ledger.transaction(spark, str(story.lake.warehouse), transaction_id).collect()
        visible = [half for half in told["half_messages"] if half["visible"]]
        assert len(told["events"]) == len(rows) + len(visible)
        assert {(half["queue"], half["queue_offset"]) for half in visible if half["topic"] == "orders"} <= seen
        first = told["half_messages"][0]
        at = (first["queue"], first["queue_offset"])
        if at in wanted:
            assert (told["state"], told["reason"], told["checks"]) == wanted[at]


def test_one_transaction_is_one_object_of_the_contract(story: Story) -> None:
    some = ask(story, "tx", "list", "--state=COMMITTED", "--limit=1")[1][0]["transaction_id"]
    code, (told,) = ask(story, "tx", "show", some)
    assert code == 0
    names = ["transaction_id", "producer_group", "state", "reason", "checks", "round", "half_messages", "events"]
    assert list(told) == names
    half = ["queue", "queue_offset", "topic", "message_id", "state", "visible", "batch_id"]
    assert list(told["half_messages"][0]) == half
    assert list(told["events"][0]) == ["at", "what", "detail"]
    assert [event["at"] for event in told["events"]] == sorted(event["at"] for event in told["events"])
    done = CliRunner().invoke(app, ["tx", "show", "unheard", f"--set=warehouse={story.lake.warehouse}"])
    assert done.exit_code == 3
    assert done.output.startswith(
        "there is no transaction and no half message unheard; a message sent without one is in"
    )


def test_a_message_id_or_a_key_leads_to_its_transaction(story: Story) -> None:
    row = next(row for row in story.lake.rows("half") if row["keys"] and row["queue"] == row["first_queue"])
    (told,) = ask(story, "tx", "show", row["message_id"])[1]
    assert told["transaction_id"] == row["transaction_id"]
    found = ask(story, "tx", "list", "--keys", row["keys"].split(" ")[0], "--limit=1000")[1]
    assert row["transaction_id"] in [each["transaction_id"] for each in found]
    none = CliRunner().invoke(app, ["tx", "list", "--keys", "nobody's", f"--set=warehouse={story.lake.warehouse}"])
    assert (none.exit_code, "`commitlake find KEY` looks among all" in none.stderr) == (3, True)
    assert re.search(r"^\(3 rows, and there are more; --limit shows them\)$", CliRunner().invoke(
        app, ["tx", "list", "--limit=3", f"--set=warehouse={story.lake.warehouse}"]).output, re.MULTILINE)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("half", "half-{queue}-{queue_offset}"),
        ("topics/orders", "{source}-{source_queue}-{source_offset}-{source_index}"),
    ],
)
def test_a_key_is_found_wherever_it_is(story: Story, name: str, place: str) -> None:
    rows = [row for row in story.lake.rows(name) if row["keys"]]
    assert rows
    for row in (rows[0], rows[-1]):
        code, found = ask(story, "find", row["keys"].split(" ")[-1], "--limit=1000")
        assert code == 0
        assert list(found[0]) == ["at", "what", "state", "topic", "message_id", "transaction_id", "place", "detail"]
        assert place.format(**row) in {each["place"] for each in found}
        assert all(re.fullmatch(TIME, each["at"]) for each in found)
    assert ask(story, "find", "nobody's") == (3, [])


def test_compacted_files_have_bloom_filters_for_ids_and_keys(spark: SparkSession, story: Story, tmp_path: Path) -> None:
    own, place = session.beside(spark, story.lake.config, session.MAINTENANCE_SETTINGS), str(tmp_path / "half")
    for name in ("one", "two"):
        row = own.sql(
            f"SELECT '{name}' AS transaction_id, '{name}' AS message_id, '{name}' AS keys, 'g' AS producer_group"
        )
        row.coalesce(1).write.format("delta").mode("append").save(place)
    DeltaTable.forPath(own, place).optimize().executeCompaction()
    with opened(str(tmp_path)) as tables:
        path = tables.files("half")["path"][0].as_py()
        sql = f"SELECT path_in_schema AS name FROM parquet_metadata('{place}/{path}') WHERE bloom_filter_offset > 0"
        assert tables.rows(sql)["name"].to_pylist() == ["transaction_id", "message_id", "keys"]
        assert tables.rows(f"SELECT count(*) AS n FROM '{place}/{path}'")["n"][0].as_py() == 2


def test_files_with_timestamps_of_either_kind_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    for kind in ("INT96", "TIMESTAMP_MICROS"):
        own = spark.newSession()
        own.conf.set("spark.sql.parquet.outputTimestampType", kind)
        row = own.sql("SELECT TIMESTAMP '2026-11-22 10:00:00.123456+00:00' AS stored_at")
        row.write.format("delta").mode("append").save(str(tmp_path / "half"))
    with opened(str(tmp_path)) as tables:
        tables.open("half")
        rows = tables.rows("SELECT stored_at FROM half WHERE stored_at > TIMESTAMPTZ '2026-11-22 00:00:00+00'")
    assert rows["stored_at"].to_pylist() == [datetime(2026, 11, 22, 10, 0, 0, 123456, UTC)] * 2


def test_counts_are_those_of_the_tables(story: Story) -> None:
    code, rows = ask(story, "stats")
    counted = sum(row["messages"] for row in rows if row["state"] not in ("PENDING", "VISIBLE"))
    assert (code, counted) == (0, len(ended(story.lake)))
    pending = sum(row["messages"] for row in rows if row["state"] == "PENDING")
    assert pending == sum(state == "PENDING" for state, *_ in expected(story).values())
    topics = {row["topic"]: row["messages"] for row in ask(story, "topics")[1]}
    shown = {
        topic: sum(row["messages"] for row in rows if (row["topic"], row["state"]) == (topic, "VISIBLE"))
        for topic in topics
    }
    assert shown == topics
    assert topics["orders"] == len(story.lake.rows("topics/orders"))
    assert len(ask(story, "rejected", "--limit=1000")[1]) == len(story.lake.rows("rejected"))
    reasons = {row["reason"] for row in ask(story, "rejected", "--reason=BAD_OP")[1]}
    assert reasons <= {"BAD_OP"}


def test_the_doctor_names_what_needs_a_look(story: Story) -> None:
    kafka = f"--set=kafka.bootstrap_servers={story.lake.settings['kafka.bootstrap_servers']}"
    prefix = f"--set=kafka.topic_prefix={story.lake.settings['kafka.topic_prefix']}"
    code, findings = ask(story, "doctor", kafka, prefix)
    found = {finding["what"]: finding for finding in findings}
    assert code == 1
    looked_at = [
        "tables",
        "disk",
        "coordinator",
        "pending",
        "late",
        "discarded",
        "rejected",
        "files",
        "kafka",
        "groups",
    ]
    assert list(found) == ["verdict", *looked_at]
    wrong = [name for name in looked_at if not found[name]["is_well"]]
    assert found["verdict"]["detail"] == f"{len(wrong)} of 10 need a look: {', '.join(wrong)}"
    assert not found["coordinator"]["is_well"]
    assert found["coordinator"]["detail"].startswith("none runs; the last one was epoch ")
    assert not found["discarded"]["is_well"] and "tx list --state DISCARDED" in found["discarded"]["detail"]
    discarded = sum(row["state"] == "DISCARDED" for row in ended(story.lake).values())
    assert found["discarded"]["detail"].startswith(f"{discarded} half messages in the last day")
    assert found["kafka"]["detail"].endswith(": nothing still to land")
    code, findings = ask(story, "doctor", "--set=kafka.bootstrap_servers=127.0.0.1:1")
    assert (code, findings[-2]["what"], findings[-2]["is_well"]) == (1, "kafka", False)


def test_a_plan_keeps_those_that_a_business_table_has(story: Story, tmp_path: Path) -> None:
    discarded = ask(story, "tx", "list", "--state=DISCARDED", "--limit=1000")[1]
    some = [row["transaction_id"] for row in discarded[:2]]
    write_deltalake(str(tmp_path / "business"), pa.table({"id": [*some, "other"]}))
    with opened(str(story.lake.warehouse)) as tables:
        plan = bulk.BulkDecision(
            "RESUME", Wanted(states=("DISCARDED",)), (), f"delta:{tmp_path}/business ON transaction_id = id", "", 10
        )
        assert sorted(bulk.chosen_by(tables, plan)["transaction_id"].to_pylist()) == sorted(some)


def test_a_named_transaction_that_is_not_chosen_is_told_with_the_reason(story: Story) -> None:
    by_state = {row["state"]: row["transaction_id"] for row in ask(story, "tx", "list", "--limit=1000")[1]}
    message = next(row for row in story.lake.rows("half") if row["message_id"] != row["transaction_id"])
    names = ["unheard", by_state["COMMITTED"], by_state["DISCARDED"], by_state["PENDING"], message["message_id"]]
    words = ["tx", "resume", *names, "--remark=x", "--dry-run", f"--set=warehouse={story.lake.warehouse}"]
    done = CliRunner().invoke(app, words)
    told = done.output.splitlines()
    assert (done.exit_code, told[0]) == (0, "unheard: nothing is known of it")
    assert re.fullmatch(rf"{by_state['COMMITTED']}: is COMMITTED since {TIME}", told[1])
    assert told[2] == f"{by_state['PENDING']}: is PENDING"
    assert told[3] == f"{message['message_id']}: is a message of the transaction {message['transaction_id']}"
    assert told[4] == "RESUME of 1 transaction:"
    assert re.search(rf" {TIME}$", told[-1]), "times are as in `tx list`"
    done = CliRunner().invoke(app, [*words[:2], names[2], "--group=nobody", *words[-3:]])
    assert (done.exit_code, done.output.splitlines()[0]) == (3, f"{names[2]}: does not fit the filters")


def test_the_age_of_what_has_ended_does_not_grow(story: Story) -> None:
    rows = {_place(row): row for row in ask(story, "tx", "list", "--state=COMMITTED", "--limit=1000")[1]}
    ends = {at: row for at, row in ended(story.lake).items() if at in rows}
    took = {at: (row["resolved_at"] - row["stored_at"]).total_seconds() * 1_000 for at, row in ends.items()}
    assert {at: row["age_ms"] for at, row in rows.items()} == pytest.approx(took, abs=1)


MEASURE = """<script>
const shown = (kind) => [...document.querySelectorAll(kind)].filter((e) => e.getBoundingClientRect().height > 0);
document.title = JSON.stringify({
  wide: document.documentElement.scrollWidth > innerWidth, width: innerWidth,
  bars: shown("rect.committed").length, dots: shown("circle.p99").length, cards: shown("section").length,
  rows: shown("section.wide tbody tr").length, ground: getComputedStyle(document.body).backgroundColor,
  outside: shown("svg text").filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length,
});
</script>"""
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(scope="module")
def page(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "page.html"
    words = ["report", f"--out={place}", "--since=2h", f"--set=warehouse={story.lake.warehouse}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return place


def drawn(page: Path, place: Path, size: str, *more: str) -> dict[str, Any]:
    """What a browser says of the page in a window of that size."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    measured = place / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    own = (f"--user-data-dir={place}/profile", f"--window-size={size}")
    done = subprocess.run(
        [browser, *QUIET, *more, *own, "--dump-dom", measured.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(html.unescape(re.findall("<title>(.*?)</title>", done.stdout)[0]))  # type: ignore[no-any-return]


def test_the_page_has_the_numbers_of_the_tables_and_needs_no_network(story: Story, page: Path) -> None:
    text = page.read_text()
    assert "<title>CommitLake: the last 2 hours</title>" in text
    assert _length(HOUR_MS) == "hour"
    tiles = re.findall(r"<b>([\d,]+)</b><span>([\w ]+)</span>", text)
    states = Counter(row["state"] for row in ended(story.lake).values())
    shown = {
        name: int(count.replace(",", "")) for count, name in re.findall(r"<b>([\d,]+)</b><span>([\w ]+)</span>", text)
    }
    assert len(tiles) > 1
    assert {name: shown[name.lower().replace("_", " ")] for name in states} == dict(states)
    assert shown["rejected"] == len(story.lake.rows("rejected"))
    assert re.findall(r"(?:src|href)=(?!\"#)|https?://|@import|url\(", text) == []
    assert set(re.findall(r'href="#(\w+)"', text)) <= set(re.findall(r"section[^>]* id=(\w+)", text))
    assert re.findall(r"<b>(ok|LOOK)</b> (verdict|coordinator): ", text) == [
        ("LOOK", "verdict"),
        ("LOOK", "coordinator"),
    ]
    assert "none runs; the last one was epoch" in text
    assert "commitlake tx show -- " in text


@pytest.mark.parametrize("size", ["500,900", "1280,900"])  # Chromium makes no narrower window
def test_a_browser_draws_all_of_it_in_its_width(page: Path, tmp_path: Path, size: str) -> None:
    found = drawn(page, tmp_path, size)
    assert not found["wide"], "the page must not be wider than the window"
    assert found["bars"] >= 1
    assert found["dots"] >= 1
    assert found["cards"] == page.read_text().count("<section") >= 9
    assert found["rows"] >= 1
    assert found["outside"] == 0


def test_the_page_is_light_or_dark_as_the_reader_has_it(page: Path, tmp_path: Path) -> None:
    light = drawn(page, tmp_path, "800,600", "--blink-settings=preferredColorScheme=1")["ground"]
    dark = drawn(page, tmp_path, "800,600", "--blink-settings=preferredColorScheme=0")["ground"]
    assert (light, dark) == ("rgb(251, 251, 250)", "rgb(18, 21, 26)")


def test_charts_escape_what_others_have_named_and_scale_to_their_highest_value() -> None:
    assert "<b>" not in charts.lying({"<b>": 3}, "a & b")
    assert "a &amp; b" in charts.lying({"x": 3}, "a & b")
    line = charts.lines({"p50": [1.0, None, 2.0, 3.0]}, ("a", "b"), "t")
    assert line.count("<polyline") == 2
    assert charts.stacked({"COMMITTED": [0, 0]}, ("a", "b"), "t").count("<rect") == 0


def test_a_page_is_served_anew_for_each_who_asks(story: Story) -> None:
    command = [sys.executable, "-m", "commitlake.tools.cli", "report", "--serve"]
    words = [*command, f"--set=warehouse={story.lake.warehouse}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            for _ in range(2):
                with urllib.request.urlopen(address, timeout=60) as answer:
                    text = answer.read().decode()
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                assert 'http-equiv="refresh"' in text
        finally:
            server.terminate()  # Ctrl-C is ignored where a shell has put all this in the background
    assert server.returncode == -signal.SIGTERM


def test_a_served_page_tells_that_the_warehouse_can_not_be_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "commitlake.tools.cli", "report", "--serve", f"--set=warehouse={tmp_path}/none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            with pytest.raises(urllib.error.HTTPError) as answer:
                urllib.request.urlopen(server.stdout.readline().strip(), timeout=60)
            assert answer.value.code == 503
            text = answer.value.read().decode()
            assert "is not there; a relative path counts from" in text
            assert 'http-equiv="refresh"' in text, "it may be there a moment later"
        finally:
            server.terminate()
        assert "Traceback" not in server.stderr.read()
