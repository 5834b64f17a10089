"""Draws what a coordinator did in one round, from the times of the commits in its tables.

    .venv/bin/python -m tests.bench.rounds --warehouse /tmp/kept/warehouse
    .venv/bin/python -m tests.bench.rounds --warehouse /tmp/kept/warehouse --last 60 --nth 3 --count 2
    .venv/bin/python -m tests.bench.rounds --warehouse /tmp/old/warehouse /tmp/new/warehouse --plot docs/round.svg

A round is the time from one commit of `batches` to the next. Of those in the last `--last` seconds it draws the one of
median length, or the nth. A mark stands at the end of a commit; what took the time before it is not known from outside.
`--plot` draws the rounds of several warehouses below each other, on one scale.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tests.bench.observer import Commit, durations, rounds, tables

_WIDTH = 60


def main() -> None:
    """Prints, and draws where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", type=Path, nargs="+", required=True)
    parser.add_argument("--last", type=float, default=60, help="seconds before the last round's end that are looked at")
    parser.add_argument("--nth", type=int, help="which round of these, from 0; negative from the end")
    parser.add_argument("--count", type=int, default=1, help="how many rounds, one after the other")
    parser.add_argument("--plot", type=Path, help="a file for a picture of the first of these rounds of each warehouse")
    parser.add_argument("--titles", nargs="+", help="what the picture calls the warehouses, instead of their paths")
    given = parser.parse_args()
    found = [chosen(warehouse, given) for warehouse in given.warehouse]
    for each in found:
        for begin, end, commits in each:
            print("\n".join(drawn(commits, begin, end)))
    if given.plot:
        plot([each[0] for each in found], given.titles or list(map(str, given.warehouse)), given.plot)


def chosen(warehouse: Path, given: argparse.Namespace) -> list[tuple[float, float, list[Commit]]]:
    """The rounds that are asked for: begin and end in s since epoch, and the commits in between."""
    commits = sorted((commit for log in tables(warehouse) for commit in log.read()), key=lambda commit: commit.at)
    spans = rounds(warehouse)
    spans = [span for span in spans if span[1] > spans[-1][1] - given.last]
    took = durations(spans)
    nth = int(np.argsort(took)[len(took) // 2]) if given.nth is None else given.nth % len(took)
    print(f"{len(took)} rounds: median {np.median(took):.2f} s, at most {took.max():.2f} s; drawn is number {nth}")
    return [(*span, [each for each in commits if span[0] < each.at <= span[1]]) for span in spans[nth:][: given.count]]


def drawn(commits: list[Commit], begin: float, end: float) -> list[str]:
    """A line for each commit: ms since the round began, ms since the commit before, table, rows."""
    widest = max(len(commit.table) for commit in commits)
    lines, before = [f"{'ms':>7} {'step':>6}  {(end - begin) * 1_000:,.0f} ms"], begin
    for commit in commits:
        at, step = (commit.at - begin) * 1_000, (commit.at - before) * 1_000
        mark = int((commit.at - begin) / (end - begin) * (_WIDTH - 1))
        lines.append(f"{at:7,.0f} {step:6,.0f}  {commit.table:{widest}} {'.' * mark + '#':{_WIDTH}} {what(commit)}")
        before = commit.at
    return lines


def what(commit: Commit) -> str:
    """What a commit did."""
    return f"{commit.rows:>8,} rows" if commit.added else commit.operation


def plot(found: list[tuple[float, float, list[Commit]]], titles: list[str], path: Path) -> None:
    """A bar for each commit, from the end of the one before to its own."""
    from matplotlib import pyplot

    heights = [len(commits) for *_, commits in found]
    figure, axes = pyplot.subplots(
        len(found), 1, figsize=(9, 1.2 * len(found) + 0.25 * sum(heights)), sharex=True, squeeze=False,
        height_ratios=heights, layout="constrained",
    )  # fmt: skip
    for axis, (begin, end, commits), title in zip(axes.flat, found, titles, strict=True):
        ends = [commit.at - begin for commit in commits]
        begins = [0.0, *ends[:-1]]
        axis.barh(range(len(commits)), np.subtract(ends, begins), left=begins, height=0.7)
        axis.set_yticks(range(len(commits)), [commit.table for commit in commits], fontsize=8)
        for row, commit in enumerate(commits):
            axis.text(ends[row], row, f"  {what(commit).strip()}", va="center", fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{title}: {end - begin:.1f} s", fontsize=9, loc="left")
    axes.flat[-1].set_xlabel("seconds since the commit of the round before")
    longest = max(end - begin for begin, end, _ in found)
    axes.flat[-1].set_xlim(0, longest * 1.15)
    figure.savefig(path)


if __name__ == "__main__":
    main()
