"""Hypothesis profiles: by default the same examples each time; `HYPOTHESIS_PROFILE=search` looks for new ones, longer.

A failure prints the blob that reproduces it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = settings(
    deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

settings.register_profile("default", _COMMON, max_examples=300, derandomize=True)
settings.register_profile("search", _COMMON, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
