"""A coordinator that is killed while its rules answer checks: every transaction ends once, as the table says."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support import running
from tests.support.killing import kill
from tests.support.lake import Lake
from tests.support.polling import wait_for


def has_more(lake: Lake, answers: int, count: int) -> bool:
    return len(lake.rows("op")) > answers or len(lake.rows("transactions")) == count


@pytest.mark.soak
def test_a_coordinator_that_is_killed_while_rules_answer_ends_each_transaction_once(lake: Lake, tmp_path: Path) -> None:
    count = 600
    names = [f"order-{number}" for number in range(count)]
    states = {name: ("PAID", "CANCELLED")[number % 2] for number, name in enumerate(names)}
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": names[:1], "state": ["PAID"]}))
    for name in names:
        lake.half(name, keys=name, group="gone")
    rule = {
        "table": f"delta:{tmp_path / 'orders'}", "match": "keys = id", "every": "1s",
        "commit": "state = 'PAID'", "rollback": "state = 'CANCELLED'",
    }  # fmt: skip
    given: dict[str, Any] = {
        **{key.replace(".", "__"): value for key, value in lake.settings.items()},
        "transaction__timeout": "1s", "checks": json.dumps({"gone": rule}),
    }  # fmt: skip
    given.pop("warehouse"), given.pop("checkpoints", None)
    place = lake.root
    for kills in range(3):
        with running.coordinator(place, **given) as coordinator:
            coordinator.ready()
            if kills == 0:
                wait_for(lambda: len(lake.rows("checks")) >= count)
                rest = {"id": names[1:], "state": [states[name] for name in names[1:]]}
                write_deltalake(str(tmp_path / "orders"), pa.table(rest), mode="append")
            before = len(lake.rows("op"))
            wait_for(partial(has_more, lake, before, count))
            kill(coordinator.process)
    with running.coordinator(place, **given) as coordinator:
        coordinator.ready()
        wait_for(lambda: len(lake.rows("transactions")) >= count, why=lambda: len(lake.rows("transactions")))
    ends = lake.rows("transactions")
    assert Counter(row["transaction_id"] for row in ends) == dict.fromkeys(names, 1)
    assert {row["reason"] for row in ends} == {"CHECK"}
    wanted = {name: "COMMITTED" if state == "PAID" else "ROLLED_BACK" for name, state in states.items()}
    assert {row["transaction_id"]: row["state"] for row in ends} == wanted
    visible = sorted(row["transaction_id"] for row in lake.rows("topics/orders"))
    assert visible == sorted(name for name, state in states.items() if state == "PAID")
