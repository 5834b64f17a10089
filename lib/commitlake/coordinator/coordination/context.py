"""What all rounds of a run work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlake.config import Config
from commitlake.coordinator.coordination.check_requests import Seldom
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.coordination.recent import RecentHalves
from commitlake.coordinator.counters import Counters
from commitlake.coordinator.dedup.once import Once
from commitlake.protocol.clock import BrokerClock
from commitlake.tables import Warehouse


@dataclass(frozen=True)
class Context:
    """What all rounds of a run work with."""

    config: Config
    warehouse: Warehouse
    clock: BrokerClock
    recent: RecentHalves
    inputs: InputTable
    once: Once
    warn: Seldom = field(default_factory=Seldom)
    counters: Counters = field(default_factory=Counters)
