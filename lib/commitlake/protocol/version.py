"""The versions of the software and of its contract, which each start writes down."""

from __future__ import annotations

__version__ = "0.3.0.dev0"

CONTRACT = 6
"""The version of docs/contract.md by which a coordinator decides; its warehouse is not for one of an older version."""
