"""The thin boundary between Spark's state and the pure state machine: one call is one segment in one batch.

Executors import this file with all its imports, so nothing of Delta or Kafka may be among these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from zipimport import zipimporter

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.model import Rules
from commitlake.protocol.statemachine.rows import (
    ABSENT,
    EVENT,
    ROW,
    SEGMENT_SIZE,
    Rows,
    concat,
    empty,
    make,
    pack,
    unpack,
)
from commitlake.protocol.states import Event

_KEY = ("src", "queue", "segment")  # of the input rows
_ADDED = {"src": "i4", "first_queue": "i4", "now": "i8"}
_TYPES = {"i4": IntegerType(), "i8": LongType()}
EVENT_SCHEMA = StructType(
    [StructField(name, _TYPES[EVENT[name].str[1:]]) for name in EVENT.names or ()]
    + [StructField(name, _TYPES[kind]) for name, kind in _ADDED.items()]
)
"""An `EVENT` with its source, its first half message's queue and the batch's time (ms since epoch, UTC)."""

STATE_SCHEMA = StructType([StructField("rows", BinaryType())])
_Call = Callable[[tuple[Any, ...], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]


def join_and_time(rows: DataFrame, rules: Rules) -> DataFrame:
    """Runs the state machine over the input rows, a state per (source, queue, segment); returns its events.

    Spark's timeouts are not used: with them Spark goes through all states in every batch. Instead a segment says when
    it must be called next, and a tick calls it.
    """
    return rows.groupBy(*_KEY).applyInPandasWithState(
        _advance_segment(rules), EVENT_SCHEMA, STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


def _advance_segment(rules: Rules) -> _Call:
    def call(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        _forget_archives()
        rows, watermark, now = _rows(frames)
        step = advance(_kept(state), rows, now, rules, watermark)
        _keep(state, step.state)
        next_due = ABSENT if step.next_due is None else step.next_due
        due = make(EVENT, 1, event=Event.NEXT_DUE, offset=int(key[2]) * SEGMENT_SIZE, deliver_at=next_due)
        yield _frame(concat([step.events, due], EVENT), int(key[0]), int(key[1]), now)

    return call


def _forget_archives() -> None:
    """Forgets the importers of archives.

    Spark has its zips and a jar on the path of its workers, and each task reads the lists of their files again. The
    lists took 0.2 s of each task, four times the time of the state machine. Later imports still find their modules.
    """
    for path in [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]:
        del sys.path_importer_cache[path]


def _kept(state: GroupState) -> Rows:
    return unpack(state.get[0]) if state.exists else empty()


def _keep(state: GroupState, rows: Rows) -> None:
    """Stores the state; a segment with nothing open has none."""
    if len(rows):
        state.update((pack(rows),))
    elif state.exists:
        state.remove()


def _rows(frames: Iterable[pd.DataFrame]) -> tuple[Rows, int, int]:
    """The rows of a call, the newest watermark, and the time (both ms since epoch, UTC).

    A large group comes in several frames.
    """
    chunks = [frame for frame in frames if len(frame)]
    rows = np.empty(sum(map(len, chunks)), dtype=ROW)
    at, landed, now = 0, ABSENT, ABSENT
    for chunk in chunks:
        for name in ROW.names or ():
            rows[name][at : at + len(chunk)] = chunk[name].to_numpy()
        at += len(chunk)
        landed, now = max(landed, int(chunk["landed"].max())), max(now, int(chunk["now"].max()))
    return rows, landed, now


def _frame(events: Rows, src: int, queue: int, now: int) -> pd.DataFrame:
    columns = {name: np.ascontiguousarray(events[name]) for name in EVENT.names or ()}
    columns["queue"] = np.where(events["queue"] < 0, np.int32(queue), events["queue"])
    return pd.DataFrame(columns | {"src": np.int32(src), "first_queue": np.int32(queue), "now": np.int64(now)})
