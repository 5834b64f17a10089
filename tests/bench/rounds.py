"""Draws what a coordinator did in one round, from the times of the commits in its tables.

    .venv/bin/python -m tests.bench.rounds --warehouse /tmp/kept/warehouse
    .venv/bin/python -m tests.bench.rounds --warehouse /tmp/kept/warehouse --last 60 --nth 3 --count 2

A round is the time from one commit of `batches` to the next. Of those in the last `--last` seconds it draws the one of
median length, or the nth. A mark stands at the end of a commit; what took the time before it is not known from outside.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tests.bench.observer import Commit, durations, rounds, tables

_WIDTH = 60


def main() -> None:
    """Prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", type=Path, required=True)
    parser.add_argument("--last", type=float, default=60, help="seconds before the last round's end that are looked at")
    parser.add_argument("--nth", type=int, help="which round of these, from 0; negative from the end")
    parser.add_argument("--count", type=int, default=1, help="how many rounds, one after the other")
    given = parser.parse_args()
    commits = sorted((commit for log in tables(given.warehouse) for commit in log.read()), key=lambda commit: commit.at)
    spans = rounds(given.warehouse)
    spans = [span for span in spans if span[1] > spans[-1][1] - given.last]
    took = durations(spans)
    chosen = int(np.argsort(took)[len(took) // 2]) if given.nth is None else given.nth % len(took)
    print(f"{len(took)} rounds: median {np.median(took):.2f} s, at most {took.max():.2f} s; drawn is number {chosen}")
    for begin, end in spans[chosen : chosen + given.count]:
        print("\n".join(drawn([commit for commit in commits if begin < commit.at <= end], begin, end)))


def drawn(commits: list[Commit], begin: float, end: float) -> list[str]:
    """A line for each commit: ms since the round began, ms since the commit before, table, rows."""
    widest = max(len(commit.table) for commit in commits)
    lines, before = [f"{'ms':>7} {'step':>6}  {(end - begin) * 1_000:,.0f} ms"], begin
    for commit in commits:
        at, step = (commit.at - begin) * 1_000, (commit.at - before) * 1_000
        mark = int((commit.at - begin) / (end - begin) * (_WIDTH - 1))
        what = f"{commit.rows:>8,} rows" if commit.added else commit.operation
        lines.append(f"{at:7,.0f} {step:6,.0f}  {commit.table:{widest}} {'.' * mark + '#':{_WIDTH}} {what}")
        before = commit.at
    return lines


if __name__ == "__main__":
    main()
