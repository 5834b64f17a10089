"""The thin wall between Spark's state and the pure state machine: one call is one segment in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from commitlake.coordination.input_rows import KEY
from commitlake.statemachine.advance import advance
from commitlake.statemachine.model import Rules
from commitlake.statemachine.rows import EVENT, ROW, Rows, empty, pack, unpack

_ADDED = {"src": "i4", "anchor_queue": "i4", "now": "i8"}
_TYPES = {"i4": IntegerType(), "i8": LongType()}
EVENT_SCHEMA = StructType(
    [StructField(name, _TYPES[EVENT[name].str[1:]]) for name in EVENT.names or ()]
    + [StructField(name, _TYPES[kind]) for name, kind in _ADDED.items()]
)
"""An `EVENT` with its source, its first half message's queue and the batch's time (ms since epoch, UTC)."""

STATE_SCHEMA = StructType([StructField("rows", BinaryType())])
_Call = Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]


def join_and_time(rows: DataFrame, rules: Rules) -> DataFrame:
    """Runs the state machine over the input rows, a state per (source, queue, segment); returns its events."""
    return rows.groupBy(*KEY).applyInPandasWithState(
        _advance_segment(rules), EVENT_SCHEMA, STATE_SCHEMA, "append", GroupStateTimeout.ProcessingTimeTimeout
    )


def _advance_segment(rules: Rules) -> _Call:
    def call(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        now = state.getCurrentProcessingTimeMs()
        step = advance(_kept(state), _rows(frames), now, rules)
        _keep(state, step.state, step.wake_at, now)
        if len(step.events):
            yield _frame(step.events, int(key[0]), int(key[1]), now)

    return call


def _kept(state: GroupState) -> Rows:
    return unpack(state.get[0]) if state.exists else empty()


def _keep(state: GroupState, rows: Rows, wake_at: int | None, now: int) -> None:
    """A segment with nothing open has no state. Spark clears the timeout at each call, so each sets it anew."""
    if wake_at is None:
        if state.exists:
            state.remove()
        return
    state.update((pack(rows),))
    state.setTimeoutDuration(max(1, wake_at - now))


def _rows(frames: Iterable[pd.DataFrame]) -> Rows:
    """A timed-out call brings one empty frame of object columns; a large group comes in several frames."""
    chunks = [frame for frame in frames if len(frame)]
    rows = np.empty(sum(map(len, chunks)), dtype=ROW)
    at = 0
    for chunk in chunks:
        for name in ROW.names or ():
            rows[name][at : at + len(chunk)] = chunk[name].to_numpy()
        at += len(chunk)
    return rows


def _frame(events: Rows, src: int, queue: int, now: int) -> pd.DataFrame:
    columns = {name: np.ascontiguousarray(events[name]) for name in EVENT.names or ()}
    columns["queue"] = np.where(events["queue"] < 0, np.int32(queue), events["queue"])
    return pd.DataFrame(columns | {"src": np.int32(src), "anchor_queue": np.int32(queue), "now": np.int64(now)})
