"""The documents as a site: built strictly, no link broken, every public name in the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import commitlake
from commitlake import errors, testing

ROOT = Path(__file__).parents[2]
NAMES = {f"commitlake.{name}" for name in set(commitlake.__all__) - {"__version__"} - set(errors.__all__)}


def test_the_api_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    listed = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted({"commitlake.errors", "commitlake.testing", *NAMES})


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[docs]' -c constraints.txt")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "conf/mkdocs.yml", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "api" / "index.html").read_text()
    named = NAMES | {f"commitlake.errors.{name}" for name in errors.__all__}
    named |= {f"commitlake.testing.{name}" for name in testing.__all__}
    assert {name for name in named if f'id="{name}"' not in reference} == set()
    raw = re.compile(r"<p>(- |\d\. |\| |```)")  # Markdown that GitHub reads and the site does not
    assert [page for page in tmp_path.rglob("*.html") if raw.search(page.read_text())] == []
