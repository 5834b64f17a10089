"""The rules of coordination as pure functions on numpy rows: what happens to a segment in one batch.

Begin with `advance.py`, the order of the steps; each step is a file of that name. Executors import this folder, so it
imports numpy and `protocol` only.
"""

from __future__ import annotations
