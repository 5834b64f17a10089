"""Landed time: up to when everything has landed that decides on a transaction."""

from __future__ import annotations

from commitlake.landing.landed_time import Range, landed_until

ASKED = 10_000
MOST = 100


def test_a_batch_that_took_all_has_landed_up_to_its_question() -> None:
    assert landed_until([Range("half", 0, 0, 9, stored_ms=9_000)], ASKED, MOST) == ASKED


def test_a_cut_batch_has_landed_up_to_its_oldest_newest_record() -> None:
    ranges = [Range("half", 0, 0, 49, stored_ms=9_000), Range("op", 0, 0, 29, stored_ms=7_000)]
    assert landed_until(ranges, ASKED, MOST) == 7_000


def test_messages_that_decide_nothing_do_not_hold_landed_time_back() -> None:
    ranges = [Range("messages", 0, 0, 89, stored_ms=1_000), Range("op", 0, 0, 9, stored_ms=9_000)]
    assert landed_until(ranges, ASKED, MOST) == 9_000


def test_landed_time_is_never_later_than_the_question() -> None:
    assert landed_until([Range("half", 0, 0, 99, stored_ms=11_000)], ASKED, MOST) == ASKED


def test_a_batch_of_normal_messages_only_has_landed_up_to_its_question() -> None:
    assert landed_until([Range("messages", 0, 0, 99, stored_ms=1_000)], ASKED, MOST) == ASKED
