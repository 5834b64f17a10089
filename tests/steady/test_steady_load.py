"""A minute of the load that `tests/bench/endurance.py` keeps up for an hour."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.killing import ROOT


@pytest.mark.timeout(900)
def test_a_minute_of_load_becomes_visible_and_passes_the_audit() -> None:
    command = ["-m", "tests.bench.endurance", "--rate", "2000", "--seconds", "60"]
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sent = int(line_of(ended.stdout, "committed and visible").split()[0])
    assert sent >= 2_000 * 30, "a busy machine may send fewer than it should, but not that few"
    names, counts = (line_of(ended.stdout, word).split() for word in ("rolled_back", "orders"))
    row = dict(zip(names, counts, strict=True))
    assert (row["half"], row["pending"], row["discarded"]) == (str(sent), "0", "0"), row
    assert row["visible"] == row["committed"], row
    assert "all is well" in ended.stdout


def line_of(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)
