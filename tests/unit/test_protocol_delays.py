"""Delayed messages, committed half messages with a delay, and recalls (contract 4.10)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
from tests.support.one_segment import OneSegment, T, commit, delayed, half, part, recall, rollback

from commitlake.coordinator.coordination.state import _advance_segment
from commitlake.protocol.encoding import Position as Place
from commitlake.protocol.statemachine.rows import ROW
from commitlake.protocol.states import Event

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
