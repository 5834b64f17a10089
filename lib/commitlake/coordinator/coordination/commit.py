"""How a coordination batch is committed: the order of its steps."""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import Protocol

from pyspark.sql import DataFrame

from commitlake.coordinator.coordination.batch import Batch, Surroundings
from commitlake.coordinator.coordination.counted import count
from commitlake.coordinator.coordination.events import Events
from commitlake.coordinator.coordination.input_rows import OPENED
from commitlake.coordinator.coordination.unmatched import unmatched_ops, unmatched_parts, unmatched_recalls
from commitlake.coordinator.coordination.unmatched.lookup import Tables
from commitlake.coordinator.coordination.unmatched.resolution import Resolutions
from commitlake.protocol.states import Event, Kind, Source
from commitlake.spark.frames import materialized
from commitlake.spark.parallel import run_all

_WRITTEN = (Event.DECIDED, Event.DELIVERY, Event.CHECK, Event.REFUSED)


class Round(Protocol):
    """What a batch and the round that it belongs to tell each other."""

    def note(self, events: Events) -> None:
        """Takes the events of the batch."""

    def wait_for_landing(self) -> None:
        """Returns when the tables of the round's landing are written; raises what failed there."""

    def wait_for_position(self) -> None:
        """Returns when the position of that landing is written, too; raises what failed there."""

    def show(self) -> None:
        """Is called when what the batch shows is visible."""


class Committer:
    """Commits the batches of a run.

    Args:
        around: configuration and tables.
        first_batch_id: the batch_id of the query's batch 0; ids grow over the whole life of the warehouse.
        chain: is told of the events and of what is visible, and asked when the landing's tables are there.
    """

    def __init__(
        self,
        around: Surroundings,
        first_batch_id: int,
        chain: Round,
    ) -> None:
        self._around, self._first_batch_id, self._chain = around, first_batch_id, chain

    def __call__(self, frame: DataFrame, spark_batch_id: int) -> None:
        """Carries out one batch.

        The first half message that a table shows as ended *is* ended, so the ledger comes first; whatever follows is
        derived from it or written again, so a kill at any point loses nothing and doubles nothing:

        1. read the new rows and 2. run the state machine (both in `frame`);
        3. compute its events, once and whole; wait until the landing has written its tables, and resolve from the
           ledger what met no open message;
        4. the commit point: `transactions`, then `deliveries`;
        5. topic tables;
        6. `discarded`, `rejected`, `checks`, and what RESUMEs have opened (`reentries`);
        7. `batches`, after the position of the landing: what complete batches are about lies below the newest position;
        8. check requests to Kafka: at least once, their ids never change.
        """
        events = Events(frame)  # step 3
        self._chain.note(events)
        self._chain.wait_for_landing()
        if not events.count(*_WRITTEN, Event.UNMATCHED_OP, Event.UNMATCHED_PART):
            events.release()
            return
        batch = self._resolved(events, self._first_batch_id + spark_batch_id)
        try:
            if batch.events.count(*_WRITTEN) or batch.opened is not None:
                batch.write_ledger()  # step 4
                batch.publish()  # step 5
                self._chain.show()
                batch.write_rest()  # step 6
                self._chain.wait_for_position()
                batch.complete()  # step 7
                count(self._around.counters, batch.events)
                batch.send_checks()  # step 8
            batch.send_back()
        finally:
            batch.release()

    def _resolved(self, events: Events, batch_id: int) -> Batch:
        """The batch, with what the ledger says about unmatched ops and parts."""
        resolutions = self._resolutions(events)
        if resolutions is None:
            return Batch(self._around, events, batch_id)
        feedback = materialized(resolutions.feedback)
        every = events.with_more(resolutions.events)
        events.release()
        every.check_ends()
        opened = feedback.where(OPENED)
        back, again = (rows if rows.count() else None for rows in (feedback, opened))
        return Batch(self._around, every, batch_id, back, again)

    def _resolutions(self, events: Events) -> Resolutions | None:
        if not events.count(Event.UNMATCHED_OP, Event.UNMATCHED_PART):
            return None
        tables, found = Tables.of(self._around.warehouse), []
        if events.count(Event.UNMATCHED_OP, kind=Kind.RESUME):
            # What is reopened in this batch is open for an unmatched part of it, so ops come first.
            found.append(self._resolve_ops(events, tables))
            tables = tables.with_reopened(found[0].feedback)
        tasks = []
        if not found and events.count(Event.UNMATCHED_OP, src=Source.HALF):
            tasks.append(partial(self._resolve_ops, events, tables))
        if events.count(Event.UNMATCHED_OP, src=Source.MESSAGES):
            tasks.append(partial(unmatched_recalls.resolve, events, tables))
        if events.count(Event.UNMATCHED_PART, src=Source.HALF):
            tasks.append(partial(unmatched_parts.resolve, events, tables))
        return reduce(add, found + run_all(self._around.warehouse.spark, tasks))

    def _resolve_ops(self, events: Events, tables: Tables) -> Resolutions:
        return unmatched_ops.resolve(events, tables, self._around.config.transaction.timeout_ms)
