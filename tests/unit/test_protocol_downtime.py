"""A group that was down for an hour catches up, however slowly it answers, and nothing of it is lost (contract 4.3)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.test_config import load

from commitlake.config.rules import rules_of
from commitlake.protocol.statemachine.advance import advance
from commitlake.protocol.statemachine.rows import ROW, Rows, concat, empty, make
from commitlake.protocol.states import Event, Kind, State

UNKNOWN_A_SECOND = 5
DOWN_S = 3_600
BATCH_S = 15
GROUP = 7


class Outage:
    """A coordinator with default timings in simulated time, and a group that reads its checks in their order."""

    def __init__(self, answers_a_second: int) -> None:
        self.rules, self.rate = rules_of(load().transaction), answers_a_second
        self.state = empty()
        self.asked = np.empty(0, dtype=np.int64)
        self.repeated_since = self.committed = self.now = self.landed = 0
        self.others = 0

    def batch(self, is_up: bool) -> None:
        self.now += BATCH_S * 1_000
        read, self.asked = np.split(self.asked, [self.rate * BATCH_S if is_up else 0])
        arrived = [*self._new(UNKNOWN_A_SECOND * BATCH_S), *self._commits(np.unique(read))]
        step = advance(self.state, concat(arrived), self.now, self.rules)
        self.state = step.state
        self._note(step.events, is_up)

    def _new(self, count: int) -> list[Rows]:
        self.landed += count
        offsets = np.arange(self.landed - count, self.landed)
        return [make(ROW, count, kind=Kind.HALF, offset=offsets, tid=1, grp=GROUP, stored=self.now, checks=0, round=0)]

    def _commits(self, offsets: np.ndarray) -> list[Rows]:
        """The answers to what is still open; others would only wait for the end of their park time."""
        is_open = offsets[np.isin(offsets, self.state["offset"][self.state["kind"] == Kind.HALF])]
        about = {"offset": is_open, "op_queue": 0, "op_offset": is_open, "admin": 0, "tid": 1, "grp": GROUP}
        return [make(ROW, len(is_open), kind=Kind.COMMIT, from_check=1, listed=0, stored=self.now - 1, **about)]

    def _note(self, events: Rows, is_up: bool) -> None:
        kind = events["event"]
        checks = events[kind == Event.CHECK]
        self.asked = np.append(self.asked, checks["offset"])
        self.repeated_since += int((checks["repeat"] > 0).sum()) if is_up else 0
        committed = (kind == Event.DECIDED) & (events["state"] == State.COMMITTED)
        self.committed += int(committed.sum())
        self.others += int((~committed & (kind != Event.CHECK)).sum())

    def pending(self) -> int:
        return int((self.state["kind"] == Kind.HALF).sum())


@pytest.mark.parametrize("rate", [50, 2_000])
def test_a_group_that_was_down_for_an_hour_catches_up_at_any_rate(rate: int) -> None:
    outage = Outage(rate)
    while outage.now < DOWN_S * 1_000:
        outage.batch(is_up=False)
    backlog, unknown = len(outage.asked), outage.landed
    assert backlog <= unknown * 4, "after 0, 5, 15 and 35 minutes"
    until = outage.now + int(1.5 * backlog / (rate - UNKNOWN_A_SECOND)) * 1_000 + 60_000
    while outage.now < until:
        outage.batch(is_up=True)
    assert outage.pending() <= UNKNOWN_A_SECOND * 60, "what has come in the last seconds"
    assert outage.committed == outage.landed - outage.pending()
    assert outage.others == 0, "nothing was discarded or refused"
    assert outage.repeated_since <= unknown, "at most once more each"
