"""Charts as SVG: stacked bars, lines, horizontal bars. Colours are the page's CSS variables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle, groupby

WIDTH, HEIGHT = 640, 200
_LEFT, _RIGHT, _BOTTOM, _TOP = 44, 6, 22, 14
"""Margins of the plot: a point at its edge, and the highest tick in a phone's larger letters, must not be cut."""
_PLOT = WIDTH - _LEFT - _RIGHT
_LEAST = 3
"""Height of the smallest bar: 325 discards beside 140 000 commits must be seen."""


def stacked(series: Mapping[str, Sequence[float]], labels: Sequence[str], title: str) -> str:
    """Stacked bars over time; `labels` stand below, the first at the left end and the last at the right one."""
    count = len(next(iter(series.values())))
    highest = max([sum(values) for values in zip(*series.values(), strict=True)], default=0)
    ticks = _ticks(highest, 1)
    top = ticks[-1]
    width = _PLOT / count
    parts = []
    for place in range(count):
        below = 0.0
        for name, values in series.items():
            if values[place]:
                y, height = _y(below + values[place], top), _y(below, top) - _y(below + values[place], top)
                tip = f"<title>{escape(name)}: {values[place]:g}</title>"
                parts.append(
                    f'<rect class="{_css(name)}" x="{_LEFT + place * width + 0.5:.1f}" y="{y:.1f}" '
                    f'width="{max(width - 1, 1):.1f}" height="{max(height, _LEAST):.1f}">{tip}</rect>'
                )
                below += values[place]
    return _svg(title, [*_grid(ticks, labels), *parts])


def lines(series: Mapping[str, Sequence[float | None]], labels: Sequence[str], title: str) -> str:
    """Lines over time; a line has a gap where a value is None."""
    known = [value for values in series.values() for value in values if value is not None]
    ticks = _ticks(max(known, default=0), 0.1)
    top = ticks[-1]
    parts = []
    for name, values in reversed([*series.items()]):  # the first lies on top where two have the same value
        step = _PLOT / max(1, len(values) - 1)
        for run in _runs(values):
            points = " ".join(f"{_LEFT + place * step:.1f},{_y(value, top):.1f}" for place, value in run)
            parts.append(f'<polyline class="{_css(name)}" points="{points}"/>')
            parts += [
                f'<circle class="{_css(name)}" cx="{_LEFT + place * step:.1f}" cy="{_y(value, top):.1f}" r="2.5">'
                f"<title>{escape(name)}: {value:.1f} s</title></circle>"
                for place, value in run
            ]
    return _svg(title, [*_grid(ticks, labels), *parts])


def lying(values: Mapping[str, float], title: str) -> str:
    """One horizontal bar for each name."""
    top, row = max([*values.values(), 1]), 28
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y, width = number * row + 4, (WIDTH - 220) * value / top
        parts.append(f'<text x="0" y="{y + 14}">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="130" y="{y}" width="{width:.1f}" height="18"/>')
        parts.append(f'<text x="{138 + width:.1f}" y="{y + 14}">{value:,.0f}</text>')
    return _svg(title, parts, height=len(values) * row + 4)


def _grid(ticks: Sequence[float], labels: Sequence[str]) -> list[str]:
    found = []
    for value in ticks:
        y = _y(value, ticks[-1])
        found.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}">{value:g}</text>')
    last = len(labels) - 1
    for number, label in enumerate(labels):
        css = "begin" if number == 0 else "end" if number == last else "middle"
        x = _LEFT + _PLOT * number / last
        found.append(f'<text class="{css}" x="{x:.1f}" y="{HEIGHT - 4}">{escape(label)}</text>')
    return found


def _svg(title: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    name = escape(title)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _y(value: float, top: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _ticks(highest: float, step: float) -> list[float]:
    """At most six ticks from 0, each a multiple of 1, 2 or 5 times a power of ten; only the last may pass `highest`.

    `step`, a power of ten, is the least distance.
    """
    factors = cycle((2, 2.5, 2))
    while 5 * step < highest:
        step *= next(factors)
    return [step * number for number in range(max(1, math.ceil(highest / step)) + 1)]


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Runs of neighbours that have a value, with their places."""
    runs = groupby(enumerate(values), key=lambda each: each[1] is None)
    return [[(place, value) for place, value in run if value is not None] for is_gap, run in runs if not is_gap]


def _css(name: str) -> str:
    return name.lower().replace("_", "-")
