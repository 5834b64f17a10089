"""The work of a start before any query runs: side by side, and from the tables alone."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pyspark.sql import DataFrame

from commitlake.config import Config
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import LandingPosition, PartialLanding
from commitlake.coordinator.recovery import complete_batch, rebuild, snapshot
from commitlake.protocol.clock import BrokerClock
from commitlake.tables import Warehouse, topic_table


class Recovered(NamedTuple):
    """The result of a recovery, with which a start goes on.

    Attributes:
        inputs: the table of inputs, with the open rows.
        last_batch: the newest batch_id, -1 when there is none.
        uncommitted: the records that a landing that was cut short has written, None when there are none.
    """

    inputs: InputTable
    last_batch: int
    uncommitted: PartialLanding | None


def of_new_warehouse(warehouse: Warehouse, place: str, clock: BrokerClock) -> Recovered:
    """The result for a new warehouse, in which there is nothing to read."""
    return Recovered(InputTable(warehouse.spark, place, clock), -1, None)


def recover(
    warehouse: Warehouse,
    config: Config,
    place: str,
    clock: BrokerClock,
    position: LandingPosition,
    topics: Collection[str],
) -> Recovered:
    """Completes the cut-short batch, makes inputs of the open rows, and finds the records of a cut-short landing.

    The inputs are a table at `place`. The position has an entry for each partition.
    """
    tables = [*positions.LANDED, *map(topic_table, topics)]
    with ThreadPoolExecutor(4) as pool:
        inputs = pool.submit(InputTable, warehouse.spark, place, clock)
        opened = pool.submit(open_rows, warehouse, config, position)
        uncommitted = pool.submit(positions.uncommitted, warehouse, position, tables)
        last = pool.submit(_complete_batch, warehouse, config, clock, position.landing_id)
        return Recovered(inputs.result().open(opened.result()), last.result(), uncommitted.result())


def _complete_batch(warehouse: Warehouse, config: Config, clock: BrokerClock, landing_id: int) -> int:
    last = complete_batch.complete_last_batch(warehouse, clock, landing_id)
    complete_batch.resend_checks(warehouse, config)
    return last


def open_rows(warehouse: Warehouse, config: Config, position: LandingPosition) -> DataFrame:
    """The open rows, by a session that can join all records since the newest saved rows."""
    timing = config.transaction
    since = snapshot.newest(warehouse, timing)
    own = rebuild.session_for(warehouse, config, since, position)
    return rebuild.open_rows(Warehouse(own, config.warehouse), timing, since)
