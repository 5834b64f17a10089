"""A coordinator in memory, for unit tests of programs that send messages: no Java, no broker, no Spark, no threads."""

from __future__ import annotations

from commitlake.testing.coordinator import InMemoryCoordinator, Outcome, Rejected
from commitlake.testing.producer import Crash, Fault, InMemoryProducer
from commitlake.testing.shown import VisibleMessage

__all__ = ["Crash", "Fault", "InMemoryCoordinator", "InMemoryProducer", "Outcome", "Rejected", "VisibleMessage"]
