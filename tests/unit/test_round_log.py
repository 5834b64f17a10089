"""What is told of rounds."""

from __future__ import annotations

import json
import logging

import pytest

from commitlake.coordinator.round_log import RoundLog
from commitlake.spark import log_lines


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
