"""What unmatched ops and parts become: more events of the batch, and feedback rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from commitlake.coordinator.coordination.state import EVENT_SCHEMA


class Ruling(IntEnum):
    """What a resolution does, where it is not a `Refusal`."""

    NOTHING = 0
    AGAIN = -2
    """The message may still land, or ends in this batch: the row comes again, and waits on."""
    ACCEPT = -3


@dataclass(frozen=True)
class Resolutions:
    """More events of this batch (`EVENT_SCHEMA`), and input rows of the next one (`INPUT_SCHEMA`)."""

    events: DataFrame
    feedback: DataFrame

    def __add__(self, other: Resolutions) -> Resolutions:
        """Both."""
        return Resolutions(self.events.union(other.events), self.feedback.union(other.feedback))


def events(frame: DataFrame, **columns: Column | int) -> DataFrame:
    """Event rows with the given columns; what is not given is absent (-1)."""
    given = {name: value if isinstance(value, Column) else F.lit(value) for name, value in columns.items()}
    return frame.select(
        *[given.get(field.name, F.lit(-1)).cast(field.dataType).alias(field.name) for field in EVENT_SCHEMA]
    )
