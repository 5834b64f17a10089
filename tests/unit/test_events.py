"""The spans in which the messages of a batch lie: few, and without the wide gaps between old messages and new ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlake.tables.spans import Span, joined

OFFSETS = st.one_of(st.integers(0, 50_000), st.integers(0, 10**9))
SPANS = st.lists(
    st.builds(lambda queue, low, length: Span(queue, low, low + length), st.integers(0, 2), OFFSETS, st.integers(0, 9)),
    max_size=80,
)


@given(SPANS)
def test_few_spans_with_ends_at_places_cover_every_place(spans: list[Span]) -> None:
    found = joined(spans)
    assert len(found) <= 16 + len({span.queue for span in spans})
    for span in spans:
        assert [one for one in found if one.queue == span.queue and one.low <= span.low and span.high <= one.high]
    assert {(span.queue, span.low) for span in found} <= {(span.queue, span.low) for span in spans}
    assert {(span.queue, span.high) for span in found} <= {(span.queue, span.high) for span in spans}


def test_an_old_message_and_new_ones_leave_what_lies_between_out() -> None:
    new = [Span(0, 9_000_000, 9_000_100), Span(0, 9_000_050, 9_000_400)]
    assert joined([*new, Span(1, 5, 5), Span(0, 17, 17)]) == [
        Span(0, 17, 17), Span(0, 9_000_000, 9_000_400), Span(1, 5, 5)
    ]  # fmt: skip


def test_places_less_than_a_segment_apart_are_one_span() -> None:
    assert joined([Span(0, 0, 10), Span(0, 16_000, 16_010)]) == [Span(0, 0, 16_010)]
