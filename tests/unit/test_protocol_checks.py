"""When checks, discards, delayed messages, delays and recalls are due (contract 4.3 to 4.5, 4.10)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from tests.support.one_segment import OneSegment, Readable, T, commit, delayed, half, part, recall, rollback, unknown
from tests.unit.test_config import load

from commitlake.config.rules import rules_of
from commitlake.coordinator.coordination.state import _advance_segment
from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.rows import ROW, Rows, concat, empty, make
from commitlake.protocol.states import Event, Kind, State

CHECK_MAX = {"DECIDED": [(7, "DISCARDED", "CHECK_MAX")]}
EXPIRED = {"DECIDED": [(7, "DISCARDED", "EXPIRED")]}


def checked(number: int, repeat: int = 0) -> dict[str, list[Readable]]:
    return {"CHECK": [(7, 0, number, repeat)]}


def test_the_first_check_is_due_when_age_exceeds_the_timeout() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    assert segment.batch(T + 6_000) == {}
    assert segment.batch(T + 6_001) == checked(1)


@pytest.mark.parametrize(
    ("seconds", "due"),
    [(-1, 6_001), (0, 1), (5, 5_001), (6, 6_001), (7, 7_001), (2**31 - 1, (2**31 - 1) * 1000 + 1)],
)
def test_immunity_takes_the_place_of_the_timeout(seconds: int, due: int) -> None:
    segment = OneSegment(retention_ms=2**50)
    segment.batch(T, half(immunity=seconds))
    assert segment.next_due == T + due


def test_immunity_never_uses_up_checks() -> None:
    segment = OneSegment()
    segment.batch(T, half(immunity=100))
    assert all(segment.batch(now) == {} for now in range(T, T + 100_001, 10_000))
    assert segment.batch(T + 100_001) == checked(1)


def test_the_next_check_comes_an_interval_after_the_answer_unknown() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    segment.batch(T + 8_000)
    assert segment.batch(T + 60_000, unknown(T + 50_000)) == {}
    assert segment.next_due == T + 80_000
    assert segment.batch(T + 79_999) == {}
    assert segment.batch(T + 80_000) == checked(2)


def test_a_check_that_nobody_answers_is_repeated_and_not_counted() -> None:
    segment = OneSegment(check_max=1, retention_ms=10_000_000)
    segment.batch(T, half())
    assert segment.batch(T + 6_001) == checked(1)
    assert segment.batch(T + 306_000) == {}
    assert segment.batch(T + 306_001) == checked(1, repeat=1)
    assert segment.batch(T + 906_001) == checked(1, repeat=2)


def test_a_check_that_nobody_answers_counts_where_it_is_to_as_in_rocketmq() -> None:
    segment = OneSegment(check_max=3, counts_unanswered=True)
    segment.batch(T, half())
    assert segment.batch(T + 6_001) == checked(1)
    assert segment.batch(T + 36_000) == {}
    assert segment.batch(T + 36_001) == checked(2)
    assert segment.batch(T + 37_000, unknown(T + 36_900, check=(0, 1))) == {}, "it comes too late, and changes nothing"
    assert segment.batch(T + 40_000, unknown(T + 40_000, 1, check=(0, 2))) == {}
    assert segment.batch(T + 70_000) == checked(3)
    assert segment.batch(T + 99_999) == {}
    assert segment.batch(T + 100_000) == CHECK_MAX


def test_a_decision_before_the_last_unanswered_check_counts_still_decides() -> None:
    segment = OneSegment(check_max=1, counts_unanswered=True)
    segment.batch(T, half())
    segment.batch(T + 6_001)
    assert segment.batch(T + 40_000, commit(from_check=True)) == {"DECIDED": [(7, "COMMITTED", "CHECK")]}


def test_each_repeat_waits_twice_as_long_as_the_one_before_and_an_hour_at_most() -> None:
    segment, at = OneSegment(retention_ms=2**40), T + 6_001
    segment.batch(T, half())
    for repeat, minutes in enumerate([5, 10, 20, 40, 60, 60]):
        assert segment.batch(at) == checked(1, repeat)
        assert segment.next_due == at + minutes * 60_000
        at += minutes * 60_000


def test_a_lost_check_is_repeated_while_its_group_answers_others() -> None:
    """Kafka was away when it was sent, or one listener of five hangs."""
    segment = OneSegment(retention_ms=10_000_000)
    segment.batch(T, half(), half(Place(0, 8)))
    segment.batch(T + 6_001)
    for now in range(T + 30_000, T + 306_001, 30_000):
        segment.batch(now, unknown(now, now // 1_000, listed=(Place(0, 8),)))
    assert segment.batch(T + 306_001) == checked(1, repeat=1)


def test_a_repeat_counts_from_when_the_check_was_sent_and_not_from_the_watermark() -> None:
    """Landing lags by an hour, and catches up within half a minute: what was asked meanwhile is not asked again."""
    segment, sent = OneSegment(retention_ms=2**40), T + 3_600_000
    segment.batch(sent, half(), watermark=T)
    assert segment.batch(sent, watermark=T + 6_001) == checked(1)
    assert segment.batch(sent + 30_000, watermark=sent + 29_000) == {}
    assert segment.batch(sent + 300_000, watermark=sent + 300_000) == checked(1, repeat=1)


def test_an_answer_counts_once_and_for_the_check_that_it_names() -> None:
    segment = OneSegment(check_max=9)
    segment.batch(T, half())
    segment.batch(T + 6_001)
    first = unknown(T + 7_000, check=(0, 1))
    assert segment.batch(T + 8_000, first, unknown(T + 9_000, 1, check=(0, 1))) == {}
    assert segment.batch(T + 37_000) == checked(2)
    assert segment.batch(T + 38_000, unknown(T + 37_500, 2, check=(0, 1)), unknown(T + 37_500, 3, check=(1, 2))) == {}
    assert segment.next_due == T + 337_000, "the second is still out"
    segment.batch(T + 39_000, unknown(T + 38_500, 4, check=(0, 2)))
    assert segment.next_due == T + 68_500


@pytest.mark.parametrize("wrong", [{"tid": 2}, {"group": 2}, {"stored": T + 6_001}])
def test_an_unknown_that_answers_nothing_changes_nothing(wrong: dict[str, int]) -> None:
    segment = OneSegment()
    assert segment.batch(T, half(), unknown(T + 1)) == {}
    assert segment.batch(T + 6_001) == checked(1)
    assert (
        segment.batch(T + 8_000, unknown(**{"stored": T + 7_000, **wrong}), unknown(T + 7_000, listed=(Place(0, 9),)))
        == {}
    )
    assert segment.next_due == T + 306_001


def test_a_decision_beside_an_unknown_decides() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    segment.batch(T + 6_001)
    events = segment.batch(T + 8_000, unknown(T + 7_000), commit(1, stored=T + 7_500, from_check=True))
    assert events == {"DECIDED": [(7, "COMMITTED", "CHECK")]}
    assert segment.open() == 0


def test_an_interval_after_check_max_answered_checks_it_is_discarded() -> None:
    segment = OneSegment(check_max=1)
    segment.batch(T, half())
    assert segment.batch(T + 6_001) == checked(1)
    segment.batch(T + 7_000, unknown(T + 7_000))
    assert segment.batch(T + 36_999) == {}
    assert segment.batch(T + 37_000) == CHECK_MAX
    assert segment.open() == 0


def test_an_answer_in_the_last_interval_still_decides() -> None:
    segment = OneSegment(check_max=1)
    segment.batch(T, half())
    segment.batch(T + 6_001)
    segment.batch(T + 7_000, unknown(T + 7_000))
    assert segment.batch(T + 37_000, commit(from_check=True)) == {"DECIDED": [(7, "COMMITTED", "CHECK")]}


def test_with_no_checks_allowed_it_is_discarded_at_the_first_due_time() -> None:
    segment = OneSegment(check_max=0)
    segment.batch(T, half())
    assert segment.batch(T + 6_000) == {}
    assert segment.batch(T + 6_001) == CHECK_MAX


def test_older_than_the_retention_it_expires_and_is_not_checked_again() -> None:
    segment = OneSegment(retention_ms=20_000, check_max=9)
    segment.batch(T, half())
    assert segment.batch(T + 20_000) == checked(1)
    assert segment.next_due == T + 20_001
    assert segment.batch(T + 20_001) == EXPIRED


def test_an_immune_message_still_expires() -> None:
    segment = OneSegment(retention_ms=20_000)
    segment.batch(T, half(immunity=100))
    assert segment.batch(T + 20_001) == EXPIRED


@pytest.mark.parametrize(("retention_ms", "outcome"), [(6_000, EXPIRED), (6_001, CHECK_MAX), (5_999, EXPIRED)])
def test_of_two_passed_deadlines_the_earlier_gives_the_reason(
    retention_ms: int, outcome: dict[str, list[Readable]]
) -> None:
    segment = OneSegment(check_max=0, retention_ms=retention_ms)
    segment.batch(T, half())
    assert segment.batch(T + 500_000) == outcome


def test_an_op_in_the_batch_of_a_passed_deadline_comes_first() -> None:
    assert OneSegment(check_max=0).batch(T + 2_000_000, half(), commit()) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}


def test_a_clock_that_goes_backwards_neither_checks_early_nor_twice() -> None:
    segment = OneSegment()
    segment.batch(T, half())
    segment.batch(T + 6_001)
    assert segment.batch(T - 100_000) == {}
    assert segment.batch(T + 306_000) == {}
    assert segment.batch(T + 306_001) == checked(1, repeat=1)


def test_a_check_names_every_part_that_has_landed() -> None:
    segment = OneSegment()
    segment.batch(T, part(Place(1, 3)), half(), part(Place(0, 9)), half(Place(0, 10), stored=T + 9_000))
    events = segment.batch(T + 6_001)
    assert events["CHECK"] == [(7, 0, 1, 0)]
    assert sorted(events["CHECK_PART"]) == [(0, 9), (1, 3)]


def test_the_state_may_be_read_only_memory_and_is_never_changed() -> None:
    segment = OneSegment()
    segment.batch(T, half(), part(Place(1, 3)))
    before = segment.state
    before.setflags(write=False)
    kept = before.copy()
    first = segment.batch(T + 6_001)
    assert (before == kept).all()
    segment.state = before
    assert segment.batch(T + 6_001) == first, "a replayed batch says the same"


UNKNOWN_A_SECOND = 5
DOWN_S = 3_600
BATCH_S = 15
GROUP = 7


class Outage:
    """A coordinator with default timings in simulated time, and a group that reads its checks in their order."""

    def __init__(self, answers_a_second: int) -> None:
        self.rules, self.rate = rules_of(load().transaction), answers_a_second
        self.state = empty()
        self.asked = np.empty(0, dtype=np.int64)
        self.repeated_since = self.committed = self.now = self.landed = 0
        self.others = 0

    def batch(self, is_up: bool) -> None:
        self.now += BATCH_S * 1_000
        read, self.asked = np.split(self.asked, [self.rate * BATCH_S if is_up else 0])
        arrived = [*self._new(UNKNOWN_A_SECOND * BATCH_S), *self._commits(np.unique(read))]
        step = advance(self.state, concat(arrived), self.now, self.rules)
        self.state = step.state
        self._note(step.events, is_up)

    def _new(self, count: int) -> list[Rows]:
        self.landed += count
        offsets = np.arange(self.landed - count, self.landed)
        return [make(ROW, count, kind=Kind.HALF, offset=offsets, tid=1, grp=GROUP, stored=self.now, checks=0, round=0)]

    def _commits(self, offsets: np.ndarray) -> list[Rows]:
        """The answers to what is still open; others would only wait for the end of their park time."""
        is_open = offsets[np.isin(offsets, self.state["offset"][self.state["kind"] == Kind.HALF])]
        about = {"offset": is_open, "op_queue": 0, "op_offset": is_open, "admin": 0, "tid": 1, "grp": GROUP}
        return [make(ROW, len(is_open), kind=Kind.COMMIT, from_check=1, listed=0, stored=self.now - 1, **about)]

    def _note(self, events: Rows, is_up: bool) -> None:
        kind = events["event"]
        checks = events[kind == Event.CHECK]
        self.asked = np.append(self.asked, checks["offset"])
        self.repeated_since += int((checks["repeat"] > 0).sum()) if is_up else 0
        committed = (kind == Event.DECIDED) & (events["state"] == State.COMMITTED)
        self.committed += int(committed.sum())
        self.others += int((~committed & (kind != Event.CHECK)).sum())

    def pending(self) -> int:
        return int((self.state["kind"] == Kind.HALF).sum())


@pytest.mark.parametrize("rate", [50, 2_000])
def test_a_group_that_was_down_for_an_hour_catches_up_at_any_rate(rate: int) -> None:
    outage = Outage(rate)
    while outage.now < DOWN_S * 1_000:
        outage.batch(is_up=False)
    backlog, unknown = len(outage.asked), outage.landed
    assert backlog <= unknown * 4, "after 0, 5, 15 and 35 minutes"
    until = outage.now + int(1.5 * backlog / (rate - UNKNOWN_A_SECOND)) * 1_000 + 60_000
    while outage.now < until:
        outage.batch(is_up=True)
    assert outage.pending() <= UNKNOWN_A_SECOND * 60, "what has come in the last seconds"
    assert outage.committed == outage.landed - outage.pending()
    assert outage.others == 0, "nothing was discarded or refused"
    assert outage.repeated_since <= unknown, "at most once more each"


D = Place(0, 5)
DAY = 86_400_000
PARK = 600_000


def test_a_delayed_message_appears_at_its_due_time_and_not_before() -> None:
    segment = OneSegment()
    assert segment.batch(T, delayed(D, T + 1_000)) == {}
    assert segment.next_due == T + 1_000
    assert segment.batch(T + 999) == {}
    assert segment.batch(T + 1_000) == {"DELIVERY": [(5, "DELIVERED", T + 1_000)]}
    assert segment.open() == 0


def test_an_overdue_message_appears_at_once() -> None:
    assert OneSegment().batch(T, delayed(D, T - 1)) == {"DELIVERY": [(5, "DELIVERED", T - 1)]}


def test_a_recall_that_kafka_had_in_time_takes_the_message_back_however_late_it_lands() -> None:
    """The coordinator was down when the message fell due: until all has landed that Kafka held then, none is shown."""
    segment = OneSegment()
    segment.batch(T, delayed(D, T + 1_000))
    assert segment.batch(T + 90_000, watermark=T + 999) == {}
    assert segment.batch(T + 91_000, recall(D, stored=T + 998), watermark=T + 91_000) == {
        "DELIVERY": [(5, "RECALLED", T + 1_000)]
    }


def test_a_message_that_was_due_in_1970_is_called_again_when_the_watermark_is_known() -> None:
    """A due time of 0 once counted as none: committed in the first batch of a start, it was never shown."""
    rows = np.concatenate([half(deliver_at=0), commit()])
    frame = pd.DataFrame({name: rows[name] for name in ROW.names or ()} | {"landed": -1, "now": T})
    state = SimpleNamespace(exists=False, update=lambda _: None)
    (events,) = _advance_segment(OneSegment().rules)((0, 0, 0), [frame], cast(Any, state))
    wake = events[events["event"] == Event.NEXT_DUE]
    assert wake["deliver_at"].tolist() == [0]


def test_forty_days_in_milliseconds_do_not_overflow() -> None:
    segment = OneSegment()
    segment.batch(T, half(delay=40 * DAY))
    segment.batch(T, commit())
    assert segment.next_due == T + 40 * DAY
    assert segment.batch(T + 40 * DAY - 1) == {}
    assert segment.batch(T + 40 * DAY) == {"DELIVERY": [(7, "DELIVERED", T + 40 * DAY)]}


def test_a_relative_delay_counts_from_the_append_time_of_its_op() -> None:
    segment = OneSegment()
    segment.batch(T, half(delay=1_000))
    assert segment.batch(T + 5_500, commit(stored=T + 5_000)) == {"DECIDED": [(7, "COMMITTED", "DIRECT")]}
    assert segment.next_due == T + 6_000


def test_an_absolute_delay_that_is_over_is_delivered_with_the_commit() -> None:
    events = OneSegment().batch(T, half(deliver_at=T - 5), commit())
    assert events == {"DECIDED": [(7, "COMMITTED", "DIRECT")], "DELIVERY": [(7, "DELIVERED", T - 5)]}


def test_a_rolled_back_message_with_a_delay_never_appears() -> None:
    segment = OneSegment()
    assert segment.batch(T, half(delay=1_000), rollback()) == {"DECIDED": [(7, "ROLLED_BACK", "DIRECT")]}
    assert segment.open() == 0


def test_each_message_of_a_transaction_has_a_delay_of_its_own() -> None:
    segment = OneSegment()
    segment.batch(T, half(), part(Place(1, 3), delay=1_000), part(Place(1, 4), deliver_at=T + 500), commit())
    assert segment.batch(T + 2_000)["DELIVERY"] == [(3, "DELIVERED", T + 1_000), (4, "DELIVERED", T + 500)]


def test_a_message_recalled_in_the_batch_of_its_due_time_never_appears() -> None:
    segment = OneSegment()
    segment.batch(T, delayed(D, T + 1_000))
    assert segment.batch(T + 1_000, recall(D)) == {"DELIVERY": [(5, "RECALLED", T + 1_000)]}
    assert segment.open() == 0


def test_two_recalls_of_one_message_end_it_once() -> None:
    assert OneSegment().batch(T, delayed(D, T + 9), recall(D, 0), recall(D, 1)) == {
        "DELIVERY": [(5, "RECALLED", T + 9)]
    }


def test_a_recall_by_another_id_or_topic_is_refused() -> None:
    segment = OneSegment()
    events = segment.batch(T, delayed(D, T + 9), recall(D, 0, tid=2), recall(D, 1, group=2))
    assert events == {"REFUSED": [(0, "NO_DELAYED_MESSAGE"), (1, "NO_DELAYED_MESSAGE")]}
    assert segment.batch(T + 9) == {"DELIVERY": [(5, "DELIVERED", T + 9)]}


def test_a_recall_waits_for_its_message() -> None:
    segment = OneSegment()
    assert segment.batch(T + 2 * PARK, recall(D), watermark=T - 1) == {}
    assert segment.batch(T + 3 * PARK, delayed(D, T + 9), watermark=T + PARK) == {"DELIVERY": [(5, "RECALLED", T + 9)]}


def test_a_recall_of_nothing_is_unmatched_when_all_has_landed_and_when_park_time_ends() -> None:
    segment = OneSegment()
    assert segment.batch(T, recall(D)) == {"UNMATCHED_OP": [(0, 0)]}
    assert segment.open() == 0
    assert segment.batch(T, recall(D, due=0)) == {}
    assert segment.next_due == T + PARK
    assert segment.batch(T + PARK) == {"UNMATCHED_OP": [(0, 1)]}
    assert segment.open() == 0


def test_deliveries_follow_the_order_of_due_times() -> None:
    segment = OneSegment()
    segment.batch(T, *[delayed(Place(0, n), T + 100 - n) for n in range(10)])
    dues = [
        due
        for now in range(T, T + 103, 3)
        for *_, due in sorted(segment.batch(now).get("DELIVERY", []), key=lambda e: e[2])
    ]
    assert dues == [T + 100 - n for n in range(9, -1, -1)]
