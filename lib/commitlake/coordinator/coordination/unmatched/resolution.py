"""The outcome of unmatched ops and parts: more events of the batch, and requeued rows.

Executors import this file for `judged`, so nothing of Delta or Kafka may be among its imports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from commitlake.coordinator.coordination.state import EVENT_SCHEMA
from commitlake.protocol.statemachine.judge import FACT, judge
from commitlake.protocol.statemachine.rows import ABSENT


@dataclass(frozen=True)
class Resolutions:
    """More events of this batch (`EVENT_SCHEMA`), and input rows of the next one (`INPUT_SCHEMA`)."""

    events: DataFrame
    requeued: DataFrame

    def __add__(self, other: Resolutions) -> Resolutions:
        return Resolutions(self.events.union(other.events), self.requeued.union(other.requeued))


def judged(frame: DataFrame, **facts: Column | str) -> DataFrame:
    """Adds the `verdict` of `judge` on each row; `facts` are columns of `FACT`, SQL or names, null where unknown."""
    given = {name: F.expr(value) if isinstance(value, str) else value for name, value in facts.items()}
    each = [F.coalesce(given[name].cast("long"), F.lit(ABSENT)).alias(name) for name in given]
    verdict = pandas_udf(_verdicts, "int")  # type: ignore[call-overload]
    return frame.withColumn("verdict", verdict(F.struct(*each)))


def _verdicts(facts: pd.DataFrame) -> pd.Series:
    rows = np.full(len(facts), ABSENT, dtype=FACT)
    for name in facts.columns:
        rows[name] = facts[name].to_numpy()
    return pd.Series(judge(rows))


def event_rows(frame: DataFrame, **columns: Column | int) -> DataFrame:
    """Event rows with the given columns; all other columns are absent (-1)."""
    given = {name: value if isinstance(value, Column) else F.lit(value) for name, value in columns.items()}
    return frame.select(
        *[given.get(field.name, F.lit(-1)).cast(field.dataType).alias(field.name) for field in EVENT_SCHEMA]
    )
