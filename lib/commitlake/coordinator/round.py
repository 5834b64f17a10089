"""A round: records of Kafka land, and what they decide becomes visible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import DataFrame

from commitlake.coordinator.coordination import input_rows
from commitlake.coordinator.coordination.batch import Batch
from commitlake.coordinator.coordination.context import Context
from commitlake.coordinator.coordination.events import Events, Timers, count
from commitlake.coordinator.coordination.input_table import SegmentKey
from commitlake.coordinator.coordination.unmatched.resolve import resolved
from commitlake.coordinator.landing.land import Landed, Landing
from commitlake.protocol.states import Event
from commitlake.spark.frames import in_few_tasks
from commitlake.spark.parallel import run_all
from commitlake.tables import TableName

_INPUTS: Mapping[TableName, Callable[[DataFrame], DataFrame]] = {
    TableName("half"): input_rows.half_rows,
    TableName("op"): input_rows.op_rows,
    TableName("delayed"): input_rows.delayed_rows,
    TableName("rejected"): input_rows.refused_rows,
}
"""The tables whose new rows go to the state machine, with the function that makes its input rows of them."""
_WRITTEN = (Event.DECIDED, Event.DELIVERY, Event.CHECK, Event.REFUSED)


class Round:
    """One round of records that were read and classified. `land` and `advance` run side by side, `commit` follows.

    Args:
        context: the objects that all rounds of a run work with.
        timers: note when each segment must be called next.
        landing: lands the records.
        landed: the records, classified; None for a round in which only time has passed.
        watermark: the time up to which all has landed, ms since epoch, UTC.
        before: the round before; None for the first.

    Attributes:
        visible: set when the decisions of the round are visible; Kafka may then be polled for the next records.
    """

    def __init__(
        self,
        context: Context,
        timers: Timers,
        landing: Landing,
        landed: Landed | None,
        watermark: int,
        before: Round | None = None,
    ) -> None:
        self._context, self._timers, self._landing, self._landed = context, timers, landing, landed
        self._watermark = watermark
        if landed is not None:
            self._landing_id = landed.position.landing_id
        else:  # at a start: a landing that was cut short, with this id, may have written to any table
            self._landing_id = before._landing_id if before else landing.position.landing_id + 1
        self.visible = threading.Event()
        self._tables_written: Future[None] = Future()
        self._position_written: Future[None] = Future()
        if landed is None and before is not None:  # after a landing that failed, nothing is decided
            self._tables_written, self._position_written = before._tables_written, before._position_written
        elif landed is None:
            self._tables_written.set_result(None)
            self._position_written.set_result(None)

    def land(self) -> None:
        """Write the tables of the landing, in any order; then append its position."""
        if self._landed is None:
            return
        with _resolving(self._position_written):
            with _resolving(self._tables_written):
                stood = run_all(self._context.warehouse.spark, self._landing.writes(self._landed))
            self._landing.complete(self._landed)
        counters = self._context.counters
        counters.normal.add(self._landed.since, max((at for at in stood if at is not None), default=0))
        counters.add("rejected", {(reason,): number for reason, number in self._landed.rejected.items()})
        counters.add("answers", {(): self._landed.answers})

    def advance(self, due: Sequence[SegmentKey]) -> bool:
        """Give the state machine the landed rows, still cached, and ticks for `due`; False when there are none."""
        tables = self._landed.tables if self._landed is not None else {}
        rows = [make(tables[name]) for name, make in _INPUTS.items() if name in tables]
        if due:
            rows.append(self._context.inputs.ticks(due))
        if rows:
            few = self._landed is None or self._landed.few
            self._context.inputs.append(in_few_tasks(reduce(DataFrame.union, rows)), self._watermark, few=few)
        return bool(rows)

    def commit(self, frame: DataFrame, batch_id: int) -> None:
        """Carry out one batch of the state machine.

        A first half message *is* ended as soon as a table shows it as ended, so the ledger comes first. All that
        follows is derived from the ledger or written again. So a kill at any point loses nothing and doubles nothing:

        1. read the new rows and 2. run the state machine (both in `frame`);
        3. compute its events, once and whole; wait until the landing has written its tables; resolve the ops and parts
           that met no open message from the ledger;
        4. the commit point: `transactions`, then `deliveries`;
        5. topic tables;
        6. `discarded`, `rejected`, `checks`, and the rows that RESUMEs have reopened (`reentries`);
        7. `batches`, after the position of the landing: all messages of complete batches lie below the newest position;
        8. check requests to Kafka: at least once, their ids never change.
        """
        events = Events(frame)  # step 3
        self._timers.note(events)
        self._tables_written.result()
        if not events.count(*_WRITTEN, Event.UNMATCHED_OP, Event.UNMATCHED_PART):
            events.release()
            return
        batch = Batch.of(self._context, batch_id, self._landing_id, resolved(self._context, events))
        try:
            if batch.events.count(*_WRITTEN) or batch.reopened is not None:
                batch.write_ledger()  # step 4
                batch.publish()  # step 5
                self.visible.set()
                batch.write_rest()  # step 6
                self._position_written.result()
                # Not `_landing_id`: at a start that landing may go on, and later rows would be at this batch's point.
                batch.complete(self._landing.position.landing_id)  # step 7
                count(self._context.counters, batch.events)
                batch.send_checks()  # step 8
            batch.requeue(self._watermark)
        finally:
            batch.release()


@contextmanager
def _resolving(future: Future[None]) -> Iterator[None]:
    """Completes a future with the outcome of the block: None, or its error."""
    try:
        yield
    except BaseException as error:
        future.set_exception(error)
        raise
    future.set_result(None)
