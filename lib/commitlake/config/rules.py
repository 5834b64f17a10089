"""The timing rules of a configuration."""

from __future__ import annotations

from commitlake.config.sections import TransactionConfig
from commitlake.protocol.statemachine.model import Rules


def rules_of(timing: TransactionConfig) -> Rules:
    """The timing rules of the state machine; not in `model`, which executors import without YAML."""
    return Rules(
        timeout_ms=timing.timeout_ms,
        check_interval_ms=timing.check_interval_ms,
        check_repeat_ms=timing.check_repeat_ms,
        check_max=timing.check_max,
        retention_ms=timing.retention_ms,
        op_park_ms=timing.op_park_time_ms,
        counts_unanswered=timing.counts_unanswered,
    )
