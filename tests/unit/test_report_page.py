"""The report's page, made of figures without tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from commitlake.protocol.durations import HOUR_MS
from commitlake.tools.report import charts
from commitlake.tools.report.figures import AGES, BUCKETS, STATES, Figures
from commitlake.tools.report.page import page


def made(**given: Any) -> str:
    nothing: dict[str, Any] = {
        **{"since": 0, "now": 24 * HOUR_MS, "ended": {state: [0] * BUCKETS for state in STATES}},
        **{"p50": [None] * BUCKETS, "p99": [None] * BUCKETS, "ages": [0] * len(AGES)},
        **{"checks": {"sent": 0}, "discards": [], "rejects": [], "late": [], "slowest": [], "oldest": []},
    }
    return page(Figures(**(nothing | given)), "./warehouse")


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
