"""What all rounds of a run work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlake.config import Config
from commitlake.coordinator.coordination.check_requests import Seldom
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.counters import Counters
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.protocol.clock import BrokerClock
from commitlake.tables import Warehouse


@dataclass(frozen=True)
class Context:
    """What all rounds of a run work with."""

    config: Config
    warehouse: Warehouse
    clock: BrokerClock
    half_cache: HalfCache
    inputs: InputTable
    dedup: DedupIndex
    warn: Seldom = field(default_factory=Seldom)
    look_for_silent: Seldom = field(default_factory=Seldom)
    counters: Counters = field(default_factory=Counters)
