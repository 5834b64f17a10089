"""Lines of the log, for people and for programs."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest

from commitlake.coordinator.round_log import RoundLog
from commitlake.errors import KafkaError
from commitlake.spark import log_lines, process


def record(message: str, **more: object) -> logging.LogRecord:
    given = {"name": "commitlake.landing", "levelname": "WARNING", "msg": message, "created": 1.5, "msecs": 500.0}
    return logging.makeLogRecord(given | more)


def test_a_json_line_is_one_object_whatever_the_message_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json")
    line = log_lines.formatter().format(record('a "quote"\nand \x1b[31mred', fields={"records": 3}))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "WARNING",
        "logger": "commitlake.landing",
        "message": 'a "quote"\nand \x1b[31mred',
        "records": 3,
    }
    assert line.isprintable()


def test_a_json_line_has_the_stack_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json")
    try:
        raise ValueError("lost")
    except ValueError:
        line = log_lines.formatter().format(record("it failed", exc_info=sys.exc_info()))
    assert "ValueError: lost" in json.loads(line)["stack"]


def test_words_have_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log_lines.FORMAT, raising=False)
    assert log_lines.formatter().format(record("\x1b[31mred")).endswith("WARNING commitlake.landing: \\x1b[31mred")


@pytest.mark.parametrize("is_json", [False, True], ids=["words", "json"])
def test_the_error_that_ends_a_process_has_the_format_of_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json" if is_json else "text")
    with pytest.raises(SystemExit), process.short_errors():
        raise KafkaError("Kafka is away")
    told = capsys.readouterr().err
    assert (json.loads(told)["message"] if is_json else told[7:-1]) == "Kafka is away"


def test_a_format_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "xml")
    with pytest.raises(SystemExit), process.short_errors():
        pass
    assert capsys.readouterr().err == "error: COMMITLAKE_LOG_FORMAT=xml is not allowed; set it to one of text, json\n"


@pytest.mark.parametrize(
    ("message", "is_told"),
    [
        ("Lost task 0.0 in stage 9.0 (TID 9) (here executor driver): TaskKilled (Stage cancelled: by Job 3)", False),
        ("Lost task 0.0 in stage 9.0 (TID 9) (here executor driver): java.io.IOException: No space left", True),
        ("Query landing [id = 1] terminated with error", False),
    ],
)  # fmt: skip
def test_a_clean_stop_tells_of_no_task_that_it_has_killed(message: str, is_told: bool) -> None:
    lines = (Path(log_lines.__file__).parent / "log4j2.properties").read_text().splitlines()
    (pattern,) = [line.partition(" = ")[2] for line in lines if line.startswith("appender.stderr.filter.ended.regex")]
    assert (re.fullmatch(pattern, message) is None) == is_told


def test_a_round_is_a_line_of_the_log_with_fields_for_programs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="commitlake")
    rounds = RoundLog(1_000)
    rounds.add(10, 0.5, 1.25)
    assert caplog.messages == ["round: 10 records, classified in 0.50 s, visible 1.25 s later"]
    line = json.loads(log_lines.JsonLines().format(caplog.records[0]))
    assert line.items() >= {"event": "round", "records": 10, "classify_s": 0.5, "write_s": 1.25}.items()
    assert rounds.count == 1


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(message.startswith("falling behind: ") for message in caplog.messages)


def test_three_rounds_in_a_row_that_are_too_long_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds = RoundLog(1_000)
    for took in (11.0, 11.0, 9.0, 11.0, 11.0):
        rounds.add(1, took, 0.0)
    assert warnings(caplog) == 0
    rounds.add(1, 5.0, 6.0)
    assert warnings(caplog) == 1
    rounds.add(1, 11.0, 0.0)
    assert warnings(caplog) == 1


def test_a_long_interval_allows_long_rounds_and_an_idle_look_ends_a_row(caplog: pytest.LogCaptureFixture) -> None:
    rounds = RoundLog(10_000)
    for _ in range(5):
        rounds.add(1, 40.0, 0.0)
    for _ in range(5):
        rounds.add(1, 60.0, 0.0)
        rounds.add(1, 60.0, 0.0)
        rounds.idle()
    assert warnings(caplog) == 0
