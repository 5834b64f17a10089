"""A platform that hides classes of the JVM from Python, as where it has renamed them, and paths of its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from delta.tables import DeltaTable
from py4j.java_gateway import JavaPackage
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming import DataStreamReader

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


def refuse_paths(patch: pytest.MonkeyPatch, managed: Collection[str]) -> None:
    """Takes no path below some places, as Unity Catalog takes none of a table that it manages."""
    for owner, name in (
        *((DataFrameReader, "load"), (DataFrameWriter, "save"), (DataStreamReader, "load")),
        *((DeltaTable, "forPath"), (DeltaTable, "isDeltaTable")),
    ):
        patch.setattr(owner, name, _refusing(getattr(owner, name), managed))


def _refusing(call: Callable[..., Any], managed: Collection[str]) -> Callable[..., Any]:
    def refusing(*given: Any, **named: Any) -> Any:
        for each in (*given, *named.values()):
            if isinstance(each, str) and each.startswith(tuple(managed)):
                msg = f"[LOCATION_OVERLAP] {each} overlaps with managed storage"
                raise AnalysisException(msg)
        return call(*given, **named)

    return refusing
