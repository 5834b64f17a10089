"""The context of a run: the objects that all its rounds work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlake.config import Config
from commitlake.coordinator.coordination.half_cache import HalfCache
from commitlake.coordinator.coordination.input_table import InputTable
from commitlake.coordinator.counters import Counters
from commitlake.coordinator.dedup.dedup_index import DedupIndex
from commitlake.kafka.throttled import Throttle
from commitlake.protocol.clock import BrokerClock
from commitlake.tables import Warehouse


@dataclass(frozen=True)
class Context:
    """The objects that all rounds of a run work with."""

    config: Config
    warehouse: Warehouse
    clock: BrokerClock
    half_cache: HalfCache
    inputs: InputTable
    dedup: DedupIndex
    unsent_checks: Throttle = field(default_factory=Throttle)
    silent_groups: Throttle = field(default_factory=Throttle)
    counters: Counters = field(default_factory=Counters)
