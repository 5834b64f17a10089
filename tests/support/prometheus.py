"""Prometheus's own tools, where they are installed (Debian: apt install prometheus)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def promtool(*words: str, place: Path) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("Prometheus is not on this machine")
    done = subprocess.run([program, *words], check=False, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
