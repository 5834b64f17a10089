"""The settings that a coordinator publishes, for tests of producers without one."""

from __future__ import annotations

from commitlake.protocol import wire

SETTINGS = wire.Settings(
    max_message_size=1_000,
    delay_levels=("1s", "5s"),
    delay_max_ms=60_000,
    reject_transactions=False,
    queues=4,
    max_queues=64,
    topics_allowed=("*",),
    topics_max=10,
    topics=(),
)
