"""What a start does before anything runs: all of it from the tables alone, side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from commitlake.config import Config
from commitlake.coordinator.coordination.input_rows import INPUT_SCHEMA
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.landing import positions
from commitlake.coordinator.landing.positions import Leftover, Position
from commitlake.coordinator.recovery import complete_batch, rebuild, saved_rows
from commitlake.spark.frames import of_rows
from commitlake.tables import Warehouse


class Recovered(NamedTuple):
    """The newest batch_id (-1: none), and what a landing that was cut short has written (None: nothing)."""

    last_batch: int
    leftover: Leftover | None


def of_new_warehouse(inputs: InputTable) -> Recovered:
    """There is nothing to look through."""
    inputs.create(of_rows(inputs.spark, [], INPUT_SCHEMA))
    return Recovered(-1, None)


def recover(warehouse: Warehouse, config: Config, inputs: InputTable, position: Position) -> Recovered:
    """Completes the cut-short batch, writes what is open to `inputs`, and finds what a cut-short landing has written.

    Args:
        warehouse: the tables.
        config: the configuration.
        inputs: what coordination is going to read.
        position: where landing goes on, with an entry for each partition.
    """
    with ThreadPoolExecutor(3) as pool:
        opened = pool.submit(_write_open_rows, warehouse, config, inputs, position)
        leftover = pool.submit(positions.leftover, warehouse, position)
        last = pool.submit(_complete_batch, warehouse, config)
        opened.result()
        return Recovered(last.result(), leftover.result())


def _complete_batch(warehouse: Warehouse, config: Config) -> int:
    last = complete_batch.complete_last_batch(warehouse)
    complete_batch.resend_checks(warehouse, config)
    return last


def _write_open_rows(warehouse: Warehouse, config: Config, inputs: InputTable, position: Position) -> None:
    timing = config.transaction
    since = saved_rows.newest(warehouse, timing)
    own = rebuild.session_for(warehouse, config, position.landed() - since.records())
    inputs.create(rebuild.open_rows(Warehouse(own, config.warehouse), timing, since))
