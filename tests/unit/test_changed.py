"""`tests/run.sh --changed` knows the tests of each folder, and each file of tests is some folder's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.changed import ROOT, TESTS, files_of, needed_by


def test_the_table_names_each_file_of_the_tests_that_start_something() -> None:
    named = {file for folder in TESTS for file in files_of(folder)}
    slow = (
        path for part in ("spark", "recovery", "e2e", "steady") for path in (ROOT / "tests" / part).glob("test_*.py")
    )
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in slow)


def test_the_table_has_each_folder_of_the_package() -> None:
    package = ROOT / "lib/commitlake"
    files = [path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py"]
    without = {file for file in files if not any(folder in TESTS for folder in map(str, file.parents))}
    assert without == {Path("errors.py"), Path("throttled.py")}
    assert all((package / folder).exists() or (ROOT / folder).exists() for folder in TESTS)


@pytest.mark.parametrize(
    ("path", "some"),
    [
        ("lib/commitlake/coordinator/landing/land.py", "tests/recovery/test_landing_recovery.py"),
        ("lib/commitlake/coordinator/round.py", "tests/recovery/test_round.py"),
        ("tests/spark/test_audit.py", "tests/spark/test_audit.py"),
        ("tests/support/lake.py", "tests/spark/test_coordination_rules.py"),
        ("spark-submit.sh", "tests/e2e/test_launch.py"),
    ],
)
def test_a_changed_path_brings_its_tests(path: str, some: str) -> None:
    assert some in needed_by([path])


def test_what_is_in_the_short_run_anyway_or_gone_brings_none() -> None:
    assert needed_by(["docs/why.md", "lib/commitlake/errors.py", "tests/spark/test_that_was_deleted.py"]) == []
