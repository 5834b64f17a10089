"""A start: one coordinator a warehouse, a cut-short batch completed, what is open worked out from the tables."""

from __future__ import annotations
