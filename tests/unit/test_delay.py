"""What the delay headers mean: precedence, levels, limits."""

from __future__ import annotations

import pytest

from commitlake.errors import RecordError
from commitlake.protocol import delay
from commitlake.protocol.delay import Delay

LEVELS = [delay.level_ms(level) for level in ("1s", "5s", "10s", "2h")]
DAY = 86_400_000
STORED = 1_767_225_600_000


def parse(**headers: str) -> Delay | None:
    return delay.parse(headers, LEVELS, 40 * DAY, STORED)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"DELAY": ""}, None),
        ({"DELAY": "1"}, Delay(1_000, None)),
        ({"DELAY": "+3"}, Delay(10_000, None)),
        ({"DELAY": "0"}, None),
        ({"DELAY": "-1"}, None),
        ({"TIMER_DELAY_SEC": "10800"}, Delay(10_800_000, None)),
        ({"TIMER_DELAY_MS": "1"}, Delay(1, None)),
        ({"TIMER_DELAY_MS": "0"}, Delay(0, None)),
        ({"TIMER_DELAY_MS": "-1"}, None),
        ({"TIMER_DELIVER_MS": str(STORED + 5)}, Delay(None, STORED + 5)),
    ],
)
def test_each_header_alone(headers: dict[str, str], expected: Delay | None) -> None:
    assert parse(**headers) == expected


def test_a_level_beats_timers_and_the_first_timer_from_0_up_counts() -> None:
    timers = {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "TIMER_DELIVER_MS": "4"}
    assert parse(DELAY="2", **timers) == Delay(5_000, None)
    assert parse(DELAY="0", **timers) == Delay(2_000, None)
    assert parse(**{**timers, "TIMER_DELAY_SEC": "-1"}) == Delay(3, None)
    assert parse(**{**timers, "TIMER_DELAY_SEC": "-1", "TIMER_DELAY_MS": "-9"}) == Delay(None, 4)


@pytest.mark.parametrize("level", ["5", "999", "9" * 30])
def test_a_level_above_the_last_is_the_last(level: str) -> None:
    assert parse(DELAY=level) == Delay(7_200_000, None)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["1.5", "soon", " 1", "1 ", "0x1", "1e3", "--1", "+", "٣"])
def test_what_is_not_a_whole_number_is_bad_delay_beside_a_level_too(name: str, text: str) -> None:
    with pytest.raises(RecordError) as error:
        parse(**{"DELAY": "1", name: text})
    assert error.value.reason == "BAD_DELAY"


@pytest.mark.parametrize(
    "headers",
    [
        {"TIMER_DELAY_SEC": str(40 * DAY // 1_000 + 1)},
        {"TIMER_DELAY_MS": str(40 * DAY + 1)},
        {"TIMER_DELIVER_MS": str(STORED + 40 * DAY + 1)},
        {"TIMER_DELAY_SEC": "9" * 30},
        {"TIMER_DELIVER_MS": "9" * 5_000},
    ],
)
def test_one_ms_above_delay_max_is_too_long(headers: dict[str, str]) -> None:
    with pytest.raises(RecordError) as error:
        parse(**headers)
    assert error.value.reason == "DELAY_TOO_LONG"


def test_40_days_are_exact_to_the_millisecond_and_above_32_bits() -> None:
    found = parse(TIMER_DELAY_MS=str(40 * DAY))
    assert found is not None
    assert found.due(STORED) == STORED + 3_456_000_000


def test_an_absolute_time_in_the_past_is_due_then() -> None:
    found = parse(TIMER_DELIVER_MS="1")
    assert found is not None
    assert found.due(STORED) == 1


def test_a_delay_that_does_not_count_may_be_too_long() -> None:
    assert parse(DELAY="1", TIMER_DELAY_SEC="9" * 18) == Delay(1_000, None)
