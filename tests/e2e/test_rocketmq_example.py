"""RocketMQ's transaction example, ported, against a real broker and coordinator; results read without Spark."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.polling import wait_for
from tests.support.tables import rows

from commitlake import TransactionMQProducer

if TYPE_CHECKING:
    from commitlake.coordinator.coordinator import Coordinator

EXAMPLE = Path(__file__).parents[2] / "notebooks" / "examples" / "rocketmq_transaction.py"


def test_ten_unknown_transactions_end_by_their_checks(
    coordinator: Coordinator,
) -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    with TransactionMQProducer(
        example["GROUP"],
        example["TransactionListenerImpl"](),
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=kafka.topic_prefix,
    ) as producer:
        ids = example["send_ten"](producer)
        wait_for(lambda: len(ended(warehouse, example["GROUP"])) == 10)

    ends = {row["transaction_id"]: row for row in ended(warehouse, example["GROUP"])}
    found = [(ends[one]["state"], ends[one]["reason"]) for one in ids]
    discarded, committed, rolled_back = ("DISCARDED", "CHECK_MAX"), ("COMMITTED", "CHECK"), ("ROLLED_BACK", "CHECK")
    assert found == [(discarded, committed, rolled_back)[i % 3] for i in range(10)]
    assert {ends[one]["checks"] for one in ids[::3]} == {coordinator.config.transaction.check_max}

    wait_for(lambda: len(visible(warehouse, example["TOPIC"])) >= 3)
    seen = visible(warehouse, example["TOPIC"])
    assert sorted((row["body"], row["tags"], row["keys"]) for row in seen) == [
        (f"Hello RocketMQ {i}".encode(), example["TAGS"][i % 5], f"KEY{i}") for i in (1, 4, 7)
    ]


def ended(warehouse: str, group: str) -> list[dict[str, Any]]:
    return [row for row in rows(warehouse, "transactions") if row["producer_group"] == group]


def visible(warehouse: str, topic: str) -> list[dict[str, Any]]:
    return rows(warehouse, f"topics/{topic}")
