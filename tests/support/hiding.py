"""A platform that hides classes of the JVM from Python, as where it has renamed them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import SparkSession

from commitlake.spark import jvm


class _Hiding:
    """A JVM that takes some classes for packages, as py4j does with what it does not find."""

    def __init__(self, real: Any, hidden: Collection[str]) -> None:
        self._real, self._hidden = real, hidden

    def __getattr__(self, name: str) -> Any:
        return JavaPackage(name, None) if name in self._hidden else getattr(self._real, name)


def hide(patch: pytest.MonkeyPatch, names: Collection[str]) -> None:
    """Hides classes from all that looks them up."""
    real = jvm._of

    def of(spark: SparkSession) -> Any:
        return _Hiding(real(spark), names)

    patch.setattr(jvm, "_of", of)
