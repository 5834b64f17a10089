"""Marks of transactions in the logs of tables, against a model: whatever order jobs, checks and kills come in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlake.clients.delta.marks import FENCED, PREFIX, WRITTEN, decision, fence, mark

TABLES = ("orders", "lines")
TRANSACTION = PREFIX + "t"
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(TABLES)),
    st.tuples(st.just("fence"), st.sampled_from(TABLES)),  # a check that was killed after one of its fences
    st.tuples(st.just("other"), st.sampled_from(TABLES)),  # a commit of somebody else
    st.tuples(st.just("check"), st.just("early")),
    st.tuples(st.just("check"), st.just("late")),
)


def write(place: str) -> None:
    """What Delta's writer does with `txnVersion`: nothing where that version was reached."""
    table = DeltaTable(place)
    if (table.transaction_version(TRANSACTION) or 0) >= WRITTEN:
        return
    properties = CommitProperties(app_transactions=[Transaction(TRANSACTION, WRITTEN)], max_commit_retries=0)
    write_deltalake(table, pa.table({"id": [1]}), mode="append", commit_properties=properties)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_a_decision_fits_the_rows_and_never_changes(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        places = {name: str(Path(root) / name) for name in TABLES}
        for place in places.values():
            write_deltalake(place, pa.table({"id": [0]}))
        model: dict[str, int] = {}
        decided: str | None = None
        for kind, what in [*steps, ("check", "late")]:
            if kind == "write":
                write(places[what])
                model.setdefault(what, WRITTEN)
            elif kind == "fence":
                assert fence(places[what], TRANSACTION) == model.setdefault(what, FENCED)
            elif kind == "other":
                write_deltalake(places[what], pa.table({"id": [9]}), mode="append")
            else:
                found = decision(list(places.values()), TRANSACTION, is_over=what == "late")
                if what == "late" or FENCED in model.values():
                    for name in TABLES:
                        model.setdefault(name, FENCED)
                expected = None
                if len(model) == len(TABLES):
                    expected = "COMMIT" if set(model.values()) == {WRITTEN} else "ROLLBACK"
                assert found == expected
                assert decided in (None, found)
                decided = found
            for name, place in places.items():
                rows = DeltaTable(place).to_pyarrow_table()["id"].to_pylist()
                assert rows.count(1) == int(model.get(name) == WRITTEN)
                assert mark(place, TRANSACTION) == model.get(name)
        assert decided is not None
