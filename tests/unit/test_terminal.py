"""What producers have named, on a terminal and on the page: it is shown and does nothing."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from datetime import datetime
from html import unescape
from typing import Any

import pytest

from commitlake.config.terminal import json_line, lines, printable, shell_word
from commitlake.protocol.durations import HOUR_MS
from commitlake.spark import process
from commitlake.tools.cli import output
from commitlake.tools.cli.questions import show
from commitlake.tools.report import charts
from commitlake.tools.report.figures import AGES, BUCKETS, STATES, Figures
from commitlake.tools.report.page import page

EVIL = [
    "x; touch pwned",
    "x';touch pwned;'",
    "$(touch pwned)`touch pwned`",
    "x\x1b]0;owned\x07\x1b[31m",
    "\x1b[201~\ntouch pwned\n",
    "\x9b31mC1",
    "\u202eright to left",
    "\ud800",
    "--where=true",
    "",
]


NONE: dict[str, list[float | None]] = {"p50": [None] * BUCKETS, "p99": [None] * BUCKETS}


@pytest.mark.parametrize("text", EVIL)
def test_a_text_of_a_producer_has_no_control_character(text: str) -> None:
    assert printable(text).isprintable()
    line = json_line({"id": text})
    assert line.isprintable()
    assert json.loads(line) == {"id": text}


def test_other_letters_stay_as_they_are() -> None:
    assert printable("Zürich 鍵 😀") == "Zürich 鍵 😀"
    assert json_line({"id": "Zürich 鍵 😀"}) == '{"id": "Zürich 鍵 😀"}'
    assert printable("a\tb\nc\x1b") == r"a\tb\nc\x1b"
    assert lines("one\ntwo\x1b\n") == "one\ntwo\\x1b\n"


@pytest.mark.parametrize("text", [each for each in EVIL if each != "\ud800"])
def test_a_word_of_a_command_is_read_back_as_it_was(text: str) -> None:
    word = shell_word(text)
    assert word.isprintable()
    read = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert read.decode() == text


@pytest.mark.parametrize("width", [60, 100, 200])
def test_an_id_is_whole_in_a_narrow_terminal_and_what_is_left_out_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(process, "terminal_columns", lambda: width)
    columns = ("state", "topic", "transaction_id", "producer_group", "remark")
    row = ("PENDING", "orders", "E2C0" * 8, "order-service", "word " * 10)
    output.show(columns, [row])
    table, _, left_out = capsys.readouterr().out.partition("too narrow for: ")
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", table).splitlines())) <= width
    named = left_out.strip().split(", ")
    for name, text in zip(columns, row, strict=True):
        assert (name in named) != (text.split()[0] in table)
    assert "transaction_id" not in named
    assert bool(left_out) == (width < 200)


def shown_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, **row: str) -> str:
    """What a terminal of this width shows of a row, its lines joined."""
    monkeypatch.setattr(process, "terminal_columns", lambda: width)
    output.show(list(row), [list(row.values())])
    return re.sub(r"\x1b\[[0-9;]*m|\s", "", capsys.readouterr().out)


def test_an_id_that_is_wider_than_the_terminal_goes_on_in_the_next_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("x" * 60 + "END", "鍵" * 40 + "END"):
        assert text in shown_at(monkeypatch, capsys, 40, message_id=text)


def test_a_list_of_transactions_has_their_states_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"transaction_id": "a" * 32, "checks": "3", "queue": "0", "queue_offset": "12", "age_ms": "352243"}
    found = shown_at(monkeypatch, capsys, 80, **row, state="DISCARDED", reason="CHECK_MAX", topic="TopicTest1234")
    assert "DISCARDED" in found and "CHECK_MAX" in found


def test_narrow_columns_come_before_wide_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"transaction_id": "a" * 36, "producer_group": "please_rename_unique_group_name", "topic": "orders"}
    found = shown_at(monkeypatch, capsys, 80, **row, state="PENDING", reason="", checks="3")
    assert found.endswith("toonarrowfor:producer_group")


def test_two_ids_fit_into_the_usual_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"transaction_id": "a" * 36, "message_id": "b" * 36}
    assert all(text in shown_at(monkeypatch, capsys, 79, **row) for text in row.values())


def test_tables_and_json_of_commands_show_control_characters_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa

    found = pa.table({"id": [each for each in EVIL if each != "\ud800"]})
    show(found, 100, as_json=False)
    show(found, 100, as_json=True)
    assert "\x1b" not in (shown := capsys.readouterr().out)
    assert "\x9b" not in shown
    monkeypatch.setenv(process.TERMINAL, "200")
    output.show(["id"], [[EVIL[3]]])
    assert "\\x1b]0;owned" in (shown := capsys.readouterr().out)
    assert "\x07" not in shown


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_what_a_terminal_can_not_show_is_an_escape_and_no_error(encoding: str) -> None:
    program = (
        "import sys\nfrom commitlake.config.terminal import json_line\nfrom commitlake.errors import ConfigError\n"
        "from commitlake.spark import process\n"
        "with process.short_errors():\n    print('é 鍵 😀', json_line({'id': 'é 鍵 😀'}))\n"
        "    raise ConfigError('鍵 😀')"
    )
    environment = {"PYTHONPATH": "lib", "PYTHONIOENCODING": encoding}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=environment)
    shown, error = found.stdout.decode(encoding), found.stderr.decode(encoding)
    assert (found.returncode, error) == (
        1,
        "error: 鍵 😀\n" if encoding == "utf-8" else "error: \\u9375 \\ud83d\\ude00\n",
    )
    assert json.loads(shown[shown.index("{") :]) == {"id": "é 鍵 😀"}
    assert shown.startswith({"latin-1": "é \\u9375 \\ud83d", "ascii": "\\u00e9 \\u9375", "utf-8": "é 鍵 😀"}[encoding])


def test_lines_of_the_log_and_errors_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    package = logging.getLogger("commitlake")
    before = list(package.handlers)
    from commitlake.errors import ConfigError

    with pytest.raises(SystemExit), process.short_errors():
        (handler,) = [each for each in package.handlers if each not in before]
        assert isinstance(handler, logging.StreamHandler)
        record = logging.makeLogRecord({"name": "commitlake", "msg": "id %s", "args": (EVIL[3],)})
        assert "\x1b" not in handler.format(record)
        package.removeHandler(handler)
        raise ConfigError(f"two\nlines {EVIL[3]}")
    assert capsys.readouterr().err == "error: two\nlines x\\x1b]0;owned\\x07\\x1b[31m\n"


def test_the_command_that_the_page_proposes_ends_that_transaction_and_does_nothing_else() -> None:
    ids = [each for each in EVIL if each != "\ud800"]
    figures = Figures(
        since=0, now=1, ended={state: [0] * BUCKETS for state in STATES}, at_once=NONE, checked=NONE,
        ages=[0] * len(AGES), checks={"sent": 0}, discards=[], rejects=[], late=[], slowest=[],
        oldest=[{"transaction_id": each} for each in ids],
    )  # fmt: skip
    shown = unescape(page(figures, "/lake"))
    for each in ids:
        assert f"<code>commitlake tx show -- {shell_word(each)}</code>" in shown
    assert "\x1b" not in shown


def made(*findings: tuple[str, bool, str], **given: Any) -> str:
    nothing: dict[str, Any] = {
        **{"since": 0, "now": 24 * HOUR_MS, "ended": {state: [0] * BUCKETS for state in STATES}},
        **{"at_once": NONE, "checked": NONE, "ages": [0] * len(AGES)},
        **{"checks": {"sent": 0}, "discards": [], "rejects": [], "late": [], "slowest": [], "oldest": []},
    }
    return page(Figures(**(nothing | given)), "./warehouse", findings=findings)


def test_intended_duplicates_are_no_rejects() -> None:
    at = datetime(2026, 11, 1)  # noqa: DTZ001 - as DuckDB gives times
    rejects = [{"reason": reason, "records": 3, "newest": at} for reason in ("DUPLICATE_OF", "BAD_OP")]
    text = made(rejects=rejects)
    assert "<b>3</b><span>rejected</span>" in text
    assert "<b>3</b><span>duplicates of topics.dedup</span>" in text
    assert "topics.dedup" not in made(rejects=rejects[1:])


def test_the_newest_point_lies_inside_and_the_median_on_top() -> None:
    text = charts.lines({"p50": [1.0, 2.0], "p99": [1.0, 2.0]}, ("a", "b"), "t")
    assert f'cx="{charts.WIDTH - 6:.1f}"' in text
    assert text.rindex('<circle class="p50"') > text.rindex('<circle class="p99"')


def test_the_page_begins_with_the_verdict_and_names_what_needs_a_look() -> None:
    found = [("verdict", False, "1 of 4 needs a look: late"), ("coordinator", True, "epoch 3"), ("files", True, "few")]
    text = made(*found, ("late", False, "9 s in <b>; `commitlake stats`"))
    assert text.index("1 of 4 needs a look") < text.index("epoch 3") < text.index('<div class="tiles">')
    assert '<p class="well"><b>ok</b> coordinator: epoch 3</p>' in text
    assert '<p class="look"><b>LOOK</b> late: 9 s in &lt;b&gt;; <code>commitlake stats</code></p>' in text
    assert "few" not in text, "what is well is left out"


def test_a_discard_has_a_colour_a_link_to_its_rows_and_the_next_command() -> None:
    ended = {state: [0] * BUCKETS for state in STATES}
    rows = [{"producer_group": "shop", "topic": "orders", "reason": "CHECK_MAX", "messages": 3}]
    text = made(ended=ended | {"DISCARDED": [3, *[0] * (BUCKETS - 1)]}, discards=rows)
    assert '<div class="bad"><a href="#discarded"><b>3</b><span>discarded</span></a></div>' in text
    assert "<section id=discarded>" in text and "<code>commitlake tx list --state DISCARDED</code>" in text
    nothing = made()
    assert 'class="bad"' not in nothing and "tx list" not in nothing
    assert "<b>0</b><span>discarded</span>" in nothing


def test_a_few_discards_are_seen_beside_many_commits() -> None:
    text = charts.stacked({"COMMITTED": [140_000], "DISCARDED": [3]}, ("a", "b"), "t")
    (height,) = re.findall(r'<rect class="discarded".*? height="([\d.]+)"', text)
    assert float(height) == 3


def test_latency_is_in_two_where_some_were_checked_and_nothing_pending_is_one_line() -> None:
    checked = {"p50": [40.0, *[None] * (BUCKETS - 1)], "p99": [90.0, *[None] * (BUCKETS - 1)]}
    assert made(checked=checked).count("<h2>From half message to commit") == 2
    assert made().count("<h2>From half message to commit") == 1
    assert "nothing is pending" in made() and "10 to 60 min" not in made()
    assert "10 to 60 min" in made(ages=[0, 0, 1, 0, 0])


def ticks(text: str, css: str = "tick") -> list[str]:
    return re.findall(rf'<text class="{css}"[^>]*>([^<]+)<', text)


@pytest.mark.parametrize(
    ("highest", "found"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (5, ["0", "1", "2", "3", "4", "5"]),
        (121, ["0", "50", "100", "150"]),
        (1_010, ["0", "500", "1000", "1500"]),
    ],
)
def test_an_axis_ends_at_the_first_whole_tick_past_its_highest_bar(highest: int, found: list[str]) -> None:
    assert ticks(charts.stacked({"COMMITTED": [0, highest]}, ("a", "b"), "t")) == found


def test_a_short_latency_has_ticks_of_tenths_and_time_has_ticks_between_its_ends() -> None:
    assert ticks(charts.lines({"p50": [0.3, 0.6]}, ("a", "b"), "t")) == ["0", "0.2", "0.4", "0.6"]
    assert ticks(made(), "begin")[0] == "01-01 00:00" and ticks(made(), "end")[0] == "01-02 00:00"
    assert ticks(made(), "middle")[:3] == ["06:00", "12:00", "18:00"]
    assert ticks(made(now=8 * 24 * HOUR_MS), "middle")[:3] == ["01-03", "01-05", "01-07"]
