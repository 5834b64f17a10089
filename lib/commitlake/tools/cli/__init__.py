"""The command line: one parser for all commands, which run here or in Spark's driver."""

from __future__ import annotations
