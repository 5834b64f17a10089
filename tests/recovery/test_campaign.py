"""A short campaign with the faults that have found most; `campaign.py` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.recovery.campaign import Campaign
from tests.support.faults import WriteFault
from tests.support.misfortune import Action, Misfortune

ROUNDS = (
    Misfortune(serves=True, actions=[Action(1, "freeze", 1.5), Action(4, "kill both")]),
    Misfortune(serves=False, writes=[WriteFault("positions", "before", "fail", nth=2)], checkpoints="deleted"),
)
"""Frozen and killed, cut short after a landing's tables; without checkpoints."""


@pytest.mark.short(core_seconds=80)  # of all faults together
def test_a_few_rounds_keep_all_promises(spark: SparkSession, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed=1, spark=spark) as campaign:
        for wrong in ROUNDS:
            campaign.round(wrong)
        campaign.end()
    assert campaign.found == {}
