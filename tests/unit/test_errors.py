"""The one line that an operator gets of an error with many."""

from __future__ import annotations

import pytest

from commitlake.errors import root_reason

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
