"""The notebooks for Jupyter, as .ipynb beside their sources, which are in Databricks' form.

Run it to write them, and open them:

.venv/bin/python docs/notebooks.py && .venv/bin/jupyter lab notebooks
"""

from __future__ import annotations

import json
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
_PROSE = "# MAGIC"


def ipynb(source: str) -> str:
    """The notebook of a source."""
    cells = source.removeprefix("# Databricks notebook source\n").split("# COMMAND ----------\n")
    made = {"cells": [_cell(each.strip("\n")) for each in cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(made, indent=1)


def _cell(text: str) -> dict[str, object]:
    if not text.startswith(_PROSE):
        return {"cell_type": "code", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
    lines = [line.removeprefix(_PROSE).removeprefix(" ") for line in text.splitlines()]
    return {"cell_type": "markdown", "metadata": {}, "source": "\n".join(lines[1:])}  # the first one says %md


if __name__ == "__main__":
    for notebook in NOTEBOOKS.glob("*.py"):
        notebook.with_suffix(".ipynb").write_text(ipynb(notebook.read_text()))
