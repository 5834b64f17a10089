"""Packages of other languages, which their own tools fetch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def fetch(*command: str, cwd: Path | None = None) -> None:
    """Lets a tool fetch packages; skips the test where the tool is not there, or can't reach its registry."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} can't fetch: {done.stderr[-200:]}")
