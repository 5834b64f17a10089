"""What `rejected` says in words of a refused op."""

from __future__ import annotations

from commitlake.coordinator.coordination import rejected_rows
from commitlake.protocol.states import Refusal


def test_each_refusal_of_an_op_has_words_of_its_own() -> None:
    assert set(rejected_rows._DETAILS) == set(Refusal)
    assert len(set(rejected_rows._DETAILS.values())) == len(Refusal)
