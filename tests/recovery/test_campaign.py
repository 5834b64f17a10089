"""A short campaign with the faults that have found most; `campaign.py` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.recovery.campaign import Campaign
from tests.support.faults import WriteFault
from tests.support.misfortune import Action, Misfortune

ROUNDS = (
    Misfortune(serves=True, seconds=6, writes=[WriteFault("positions", "before", "delay", nth=3, seconds=2)]),
    Misfortune(serves=True, actions=[Action(1, "freeze", 1.5), Action(4, "kill both")]),
    Misfortune(serves=False, writes=[WriteFault("batches", "before", "kill python")], deletes_checkpoints=True),
    Misfortune(serves=False, writes=[WriteFault("positions", "before", "fail", nth=2)]),
)
"""Slow, frozen and killed, cut short after the commit point, cut short after a landing's tables."""


def test_a_few_rounds_keep_all_promises(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed=1) as campaign:
        for wrong in ROUNDS:
            campaign.round(wrong)
        campaign.end()
    assert campaign.found == {}
