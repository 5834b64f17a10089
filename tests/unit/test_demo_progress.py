"""What the demo says of differences, and how it shows its progress."""

from __future__ import annotations

import io
from collections import Counter

from commitlake.demo.comparison import Comparison
from commitlake.demo.progress import Progress


def compare(left: str, right: str) -> list[str]:
    return Comparison("orders", "the table", "the points", Counter(left), Counter(right)).differences()


def test_the_same_things_differ_in_nothing() -> None:
    assert compare("abca", "aabc") == []


def test_a_thing_that_stands_twice_is_a_difference() -> None:
    assert compare("ab", "aba") == ["orders: 1 in the points but not in the table: a"]


def test_what_is_missing_on_either_side_is_named() -> None:
    assert compare("abcdefgh", "z") == [
        "orders: 8 in the table but not in the points: a, b, c, d, e, ...",
        "orders: 1 in the points but not in the table: z",
    ]


def test_on_a_terminal_the_state_is_refreshed_in_place_and_cut_to_its_width() -> None:
    out = io.StringIO()
    progress = Progress(columns=20, out=out)
    progress.show("x" * 100)
    progress.say("done")
    assert out.getvalue() == "\r\x1b[K  0s xxxxxxxxxxxxxx\r\x1b[K  0s done\n"


def test_without_a_terminal_the_state_is_a_rare_line_without_control_characters() -> None:
    out = io.StringIO()
    progress = Progress(out=out)
    for _ in range(10):
        progress.show("state")
    progress.say("done")
    assert out.getvalue() == "  0s state\n  0s done\n"
