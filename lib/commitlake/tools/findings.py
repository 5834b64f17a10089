"""Findings of checks: one line each, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from commitlake.config.terminal import json_line, printable


@dataclass(frozen=True)
class Diagnosis:
    """The finding of one check: what was found, and what to do where it is not well."""

    what: str
    is_well: bool
    detail: str


def show(found: Sequence[Diagnosis], wrong: str, as_json: bool = False) -> bool:
    """Print the verdict and each finding; `wrong` marks those that are not well. Returns whether all is well."""
    overall = verdict(found)
    for each in (overall, *found):
        mark = "ok" if each.is_well else wrong
        line = json_line(asdict(each)) if as_json else printable(f"{mark:{len(wrong)}}  {each.what:12} {each.detail}")
        print(line)
    return overall.is_well


def verdict(found: Sequence[Diagnosis]) -> Diagnosis:
    """One finding that sums up all others."""
    wrong = [each.what for each in found if not each.is_well]
    told = f"{len(wrong)} of {len(found)} {'needs' if len(wrong) == 1 else 'need'} a look: {', '.join(wrong)}"
    return Diagnosis("verdict", not wrong, told if wrong else "all is well")
