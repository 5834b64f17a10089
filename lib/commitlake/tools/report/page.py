"""The page: figures and charts in one HTML file, for light and dark, for phones and wide screens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from commitlake.config.terminal import printable, shell_word
from commitlake.protocol.clock import as_datetime
from commitlake.protocol.durations import DAY_MS, HOUR_MS
from commitlake.protocol.states import DUPLICATE_OF
from commitlake.tools.report import charts
from commitlake.tools.report.figures import AGES, STATES, Figures

_STYLE = Path(__file__).with_name("page.css")
_COMMAND = "what happened"
_NEXT = {"discarded": "commitlake tx list --state DISCARDED", "rejected": "commitlake rejected"}
"""The next command where a tile is not zero."""
_ALWAYS = ("verdict", "coordinator", "kafka")
_LABELS = 5
_COLOURS = {"COMMITTED": "good", "ROLLED_BACK": "back", "DISCARDED": "bad", "p50": "one", "p99": "two"}


def page(
    figures: Figures,
    warehouse: str,
    refresh_s: int | None = None,
    links: str = "",
    findings: Iterable[tuple[str, bool, str]] = (),
) -> str:
    """The HTML of the page about the last hours.

    A browser loads it again every `refresh_s`, if that is given; `links` stand below the title. `findings` are what
    `commitlake doctor` says: of what, whether that is well, and the details.
    """
    times = _times(figures.since, figures.now)
    body = "".join(
        [
            f"<h1>CommitLake</h1><p>{escape(warehouse)}, {times[0]} to {times[-1]} UTC; counts of half messages</p>",
            "".join(_finding(*each) for each in findings if each[0] in _ALWAYS or not each[1]),
            links,
            f'<div class="tiles">{"".join(_tile(*each) for each in _tiles(figures))}</div>',
            f'<div class="cards">{"".join(_cards(figures, times))}</div>',
        ]
    )
    return document(f"the last {_length(figures.now - figures.since)}", body, refresh_s)


def document(title: str, body: str, refresh_s: int | None = None) -> str:
    """A whole HTML document."""
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{again}<title>CommitLake: {escape(title)}</title>"
        f"<style>{_STYLE.read_text()}</style></head><body><main>{body}</main></body></html>\n"
    )


def _tiles(figures: Figures) -> Iterable[tuple[str, str]]:
    for state in STATES:
        yield f"{figures.total(state):,}", state.lower().replace("_", " ")
    yield f"{sum(figures.ages):,}", "pending"
    yield f"{figures.checks['sent']:,}", "checks"
    rejects = {row["reason"]: row["records"] for row in figures.rejects}
    if duplicates := rejects.pop(DUPLICATE_OF, 0):
        yield f"{duplicates:,}", "duplicates of topics.dedup"  # intended, so no rejects to worry about
    yield f"{sum(rejects.values()):,}", "rejected"


def _cards(figures: Figures, times: Sequence[str]) -> Iterable[str]:
    yield _card("Outcomes", charts.stacked(figures.ended, times, "outcomes over time") + _key(STATES))
    for title, latency in (("", figures.at_once), (", after a check", figures.checked)):
        if not title or any(value is not None for value in latency["p50"]):
            chart = charts.lines(latency, times, f"latency over time{title}")
            yield _card(f"From half message to commit{title}, s", chart + _key(latency))
    yield _card("From op, normal message or due time to visible row, s", table(figures.late, "nothing became visible"))
    ages = charts.lying(dict(zip(AGES, figures.ages, strict=True)), "pending by age")
    yield _card("Pending by age", ages if any(figures.ages) else "<p>nothing is pending</p>")
    yield _card("Checks", table([figures.checks], "no checks"))
    yield _card("Discarded", _with_next("discarded", figures.discards), name="discarded")
    yield _card("Rejected records", _with_next("rejected", figures.rejects), name="rejected")
    yield _card("Slowest producer groups", table(figures.slowest, "nothing was committed"), wide=True)
    shown = [{**row, _COMMAND: f"commitlake tx show -- {shell_word(row['transaction_id'])}"} for row in figures.oldest]
    yield _card("The oldest open", table(shown, "nothing is open"), wide=True)


def _card(title: str, content: str, *, wide: bool = False, name: str = "") -> str:
    return f"<section{' class=wide' if wide else ''}{f' id={name}' if name else ''}><h2>{title}</h2>{content}</section>"


def _tile(value: str, name: str) -> str:
    shown = f"<b>{value}</b><span>{name}</span>"
    is_bad = name in _NEXT and value != "0"
    return f'<div class="bad"><a href="#{name}">{shown}</a></div>' if is_bad else f"<div>{shown}</div>"


def _with_next(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    after = f"<p>Next: <code>{_NEXT[name]}</code></p>" if rows else ""
    return table(rows, f"nothing was {name}") + after


def _finding(what: str, is_well: bool, detail: str) -> str:
    shown = re.sub("`([^`]+)`", r"<code>\1</code>", escape(printable(detail)))
    return f'<p class="{"well" if is_well else "look"}"><b>{"ok" if is_well else "LOOK"}</b> {what}: {shown}</p>'


def _key(names: Iterable[str]) -> str:
    each = [f'<i style="background:var(--{_COLOURS[name]})"></i>{name.lower().replace("_", " ")}' for name in names]
    return f'<div class="key">{"".join(each)}</div>'


def table(rows: Sequence[Mapping[str, Any]], nothing: str) -> str:
    """A table of rows, or the text `nothing`."""
    if not rows:
        return f"<p>{nothing}</p>"
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    lines = "".join(
        f"<tr>{''.join(f'<td{_css(value)}>{_cell(name, value)}</td>' for name, value in row.items())}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _css(value: object) -> str:
    """The class of a number or a time, which is not broken, however narrow the screen is."""
    return " class=whole" if isinstance(value, int | float | datetime) else ""


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    text = escape(printable(str(value)))
    return f"<code>{text}</code>" if name in (_COMMAND, "transaction_id") else text


def _times(since: int, now: int) -> list[str]:
    """Labels of the time axis: its ends with date and time, between them what is short and clear."""
    between = "%H:%M" if now - since <= 2 * DAY_MS else "%m-%d"
    places = [as_datetime(since + (now - since) * number // (_LABELS - 1)) for number in range(_LABELS)]
    ends = [f"{place:%m-%d %H:%M}" for place in (places[0], places[-1])]
    return [ends[0], *(f"{place:{between}}" for place in places[1:-1]), ends[1]]


def _length(ms: int) -> str:
    return "hour" if ms == HOUR_MS else f"{ms / HOUR_MS:g} hours"
