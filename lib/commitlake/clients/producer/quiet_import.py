"""Imports kafka-python first, without its 218 warnings, which each test of a user would print."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka  # noqa: F401
