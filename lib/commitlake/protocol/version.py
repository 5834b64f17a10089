"""The version of the software, which each start writes down."""

from __future__ import annotations

__version__ = "0.3.0.dev0"
