"""The tree of errors, and the one line that an operator gets of an error with many."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import commitlake
from commitlake import errors
from commitlake.errors import root_reason

ROOT = Path(__file__).parents[2]
WITHIN = {"GatewayRefusal", "RecordError"}
"""Those that no user of the package sees."""

PYTHON_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "./commitlake.zip/commitlake/tables/warehouse.py", line 13, in <module>
    from delta.tables import DeltaTable
ModuleNotFoundError: No module named 'delta'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:601)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no space left\n\tat java.io.FileOutputStream.write", "no space left"),
        (PYTHON_WORKER, "ModuleNotFoundError: No module named 'delta'"),
        ("", "ValueError"),
    ],
)
def test_the_reason_is_the_line_that_names_the_cause(text: str, reason: str) -> None:
    assert root_reason(ValueError(text)) == reason


def test_every_error_but_those_within_is_public_exported_and_documented() -> None:
    tree = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    public = tree - WITHIN
    assert sorted(public) == errors.__all__
    assert {name for name in public if getattr(commitlake, name, None) is not getattr(errors, name)} == set()
    section = (ROOT / "docs" / "reference" / "errors.md").read_text().split("\n## Of the package")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\| [^|]+ \| ([^|]*)\|$", section, re.MULTILINE)
    assert sorted(name for name, _ in rows) == errors.__all__
    assert [name for name, advice in rows if not advice.strip()] == ["CommitLakeError"]


def test_every_error_has_the_one_root() -> None:
    for name in [*errors.__all__, *WITHIN]:
        assert issubclass(getattr(errors, name), commitlake.CommitLakeError)
    assert issubclass(commitlake.UncertainSend, commitlake.MQClientException)


def test_no_other_file_has_an_error_that_a_user_of_the_package_sees() -> None:
    package = ROOT / "lib" / "commitlake"
    elsewhere = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
        and ast.unparse(node.bases[0]) != "BaseException"  # the end of a process, in `commitlake.testing`
        and not node.name.startswith("_")
    }
    assert elsewhere == {"errors.py", "tools"}
