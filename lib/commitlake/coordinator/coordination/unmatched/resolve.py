"""Resolution of the ops and parts of a batch that met no open message, by the ledger."""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import NamedTuple

from pyspark.sql import DataFrame

from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_rows import REOPENED
from commitlake.coordinator.coordination.unmatched import unmatched_ops, unmatched_parts
from commitlake.coordinator.coordination.unmatched.lookup import LedgerTables
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions
from commitlake.protocol.states import Event, Kind, Source
from commitlake.spark.frames import checkpoint_now
from commitlake.spark.parallel import run_all


class Resolved(NamedTuple):
    """The events of a batch, resolutions included.

    Attributes:
        events: all events.
        requeued: input rows for the next batch, None when there are none.
        reopened: the requeued rows that RESUMEs have reopened, None when there are none.
    """

    events: Events
    requeued: DataFrame | None = None
    reopened: DataFrame | None = None


def resolved(context: Context, events: Events) -> Resolved:
    """The events, and the resolutions of the unmatched ones."""
    resolutions = _resolutions(context, events)
    if resolutions is None:
        return Resolved(events)
    requeued = checkpoint_now(resolutions.requeued)
    every = events.with_more(resolutions.events)
    events.release()
    every.check_ends()
    return Resolved(every, *(rows if rows.count() else None for rows in (requeued, requeued.where(REOPENED))))


def _resolutions(context: Context, events: Events) -> Resolutions | None:
    if not events.count(Event.UNMATCHED_OP, Event.UNMATCHED_PART):
        return None
    tables, found, tasks = LedgerTables.of(context.warehouse), [], []
    resumes = events.count(Event.UNMATCHED_OP, kind=Kind.RESUME)
    if resumes:  # first: for all other unmatched rows of this batch, a reopened transaction is open
        found.append(unmatched_ops.resolve_resumes(events, tables, context.config.transaction.timeout_ms))
        tables = tables.with_reopened(found[0].requeued)
    if events.count(Event.UNMATCHED_OP, src=Source.HALF) > resumes:
        tasks.append(partial(unmatched_ops.resolve, events, tables))
    if events.count(Event.UNMATCHED_OP, src=Source.MESSAGES):
        tasks.append(partial(unmatched_ops.resolve_recalls, events, tables))
    if events.count(Event.UNMATCHED_PART, src=Source.HALF):
        tasks.append(partial(unmatched_parts.resolve, events, tables))
    return reduce(add, found + run_all(context.warehouse.spark, tasks))
