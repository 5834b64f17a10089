"""Hypothesis profiles: by default the same examples each time; `HYPOTHESIS_PROFILE=search` looks for new ones, longer.

A failure prints the blob that reproduces it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

settings.register_profile("default", max_examples=300, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=2_000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
