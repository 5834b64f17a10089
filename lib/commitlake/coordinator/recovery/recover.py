"""What a start does before anything runs: all of it from the tables alone, side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pyspark.sql import DataFrame

from commitlake.config import Config
from commitlake.coordinator.coordination.input_rows import INPUT_SCHEMA
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import LandingPosition, PartialLanding
from commitlake.coordinator.recovery import complete_batch, rebuild, snapshot
from commitlake.protocol.clock import BrokerClock
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse, topic_table


class Recovered(NamedTuple):
    """What a start goes on with.

    Attributes:
        inputs: with what is open.
        last_batch: the newest batch_id, -1: none.
        uncommitted: what a landing that was cut short has written, None: nothing.
    """

    inputs: InputTable
    last_batch: int
    uncommitted: PartialLanding | None


Made = Callable[[DataFrame], InputTable]
"""Makes the table of inputs, given what is open."""


def of_new_warehouse(warehouse: Warehouse, made: Made) -> Recovered:
    """There is nothing to look through."""
    return Recovered(made(of_rows(warehouse.spark, [], INPUT_SCHEMA)), -1, None)


def recover(
    warehouse: Warehouse,
    config: Config,
    made: Made,
    clock: BrokerClock,
    position: LandingPosition,
    topics: Collection[str],
) -> Recovered:
    """Completes the cut-short batch, makes the inputs of what is open, and finds what a cut-short landing has written.

    Args:
        warehouse: the tables.
        config: the configuration.
        made: makes what coordination is going to read.
        clock: Kafka's time.
        position: where landing goes on, with an entry for each partition.
        topics: those that have a table.
    """
    tables = [*positions.LANDED, *map(topic_table, topics)]
    with ThreadPoolExecutor(3) as pool:
        inputs = pool.submit(lambda: made(open_rows(warehouse, config, position)))
        uncommitted = pool.submit(positions.uncommitted, warehouse, position, tables)
        last = pool.submit(_complete_batch, warehouse, config, clock)
        return Recovered(inputs.result(), last.result(), uncommitted.result())


def _complete_batch(warehouse: Warehouse, config: Config, clock: BrokerClock) -> int:
    last = complete_batch.complete_last_batch(warehouse, clock)
    complete_batch.resend_checks(warehouse, config)
    return last


def open_rows(warehouse: Warehouse, config: Config, position: LandingPosition) -> DataFrame:
    """What is open, by a session that can join what came since the newest saved rows."""
    timing = config.transaction
    since = snapshot.newest(warehouse, timing)
    own = rebuild.session_for(warehouse, config, position.landed() - since.records())
    return rebuild.open_rows(Warehouse(own, config.warehouse), timing, since)
