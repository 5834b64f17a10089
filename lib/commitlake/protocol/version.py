"""The versions of the software and of its contract, which each start records."""

from __future__ import annotations

__version__ = "0.3.0.dev0"

CONTRACT = 6
"""The version of docs/contract.md by which a coordinator decides. Coordinators of older versions refuse its tables."""
