"""Rows of a sink as messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlake.clients.delta.sink import message_of, sink
from commitlake.errors import RecordError, RefusedSend
from commitlake.testing import InMemoryCoordinator


def row(**given: Any) -> dict[str, Any]:
    return {"body": "x", "keys": None, "tags": None, "sharding_key": None, **given}


def test_binary_columns_are_the_bytes_themselves() -> None:
    given = row(body=bytearray(b"\xff\x00"), keys=bytearray(b"order-17"), tags=bytearray("Zürich".encode()))
    made = message_of({**given, "sharding_key": bytearray(b"\xfe")}, "orders", {})
    assert (made.body, made.keys, made.tags, made.sharding_key) == (b"\xff\x00", "order-17", "Zürich", b"\xfe")


def test_what_is_null_is_absent_but_for_the_body() -> None:
    made = message_of(row(body=""), "orders", {"p": "v"})
    assert (made.body, made.keys, made.tags, made.sharding_key, made.properties) == ("", None, None, None, {"p": "v"})
    with pytest.raises(RecordError, match="its body is NULL") as refused:
        message_of(row(body=None), "orders", {})
    assert refused.value.reason == "NULL_BODY"


@pytest.mark.parametrize("name", ["keys", "tags"])
def test_bytes_that_are_no_text_are_told(name: str) -> None:
    with pytest.raises(RecordError, match=rf"its {name} are b'\\xff', which is not UTF-8; write .*hex\({name}\)"):
        message_of(row(**{name: bytearray(b"\xff")}), "orders", {})


def test_a_row_that_ends_its_query_does_so_with_an_error_that_is_a_name_of_the_package(tmp_path: Path) -> None:
    conf = {"warehouse": str(tmp_path / "warehouse"), "kafka.bootstrap_servers": "localhost:9092"}
    to = sink(conf, "orders", name="export", group="nightly")
    with pytest.raises(RefusedSend, match=r"^sink export: row 3 .*: its body is NULL; leave such rows out") as refused:
        to._unfit(3, row(), RecordError("its body is NULL", "NULL_BODY"))  # type: ignore[attr-defined]
    assert refused.value.reason == "NULL_BODY"


def test_a_row_whose_tag_no_filter_can_select_is_unfit_and_takes_no_other_with_it(tmp_path: Path) -> None:
    conf = {"warehouse": str(tmp_path / "warehouse"), "kafka.bootstrap_servers": "localhost:9092"}
    to: Any = sink(conf, "orders", name="export", group="nightly", unfit="skip")
    lake, sent, unfit = InMemoryCoordinator(), dict[str, Any](), list[str]()
    with lake.producer("nightly") as producer:
        to._send(producer, enumerate([row(tags="a||b"), row(tags="a")]), sent, unfit)
        for transaction in sent.values():
            transaction.commit()
    assert [message.tags for message in lake.messages("orders")] == ["a"]
    assert len(unfit) == 1
    assert "row 0" in unfit[0]
    assert "no filter can select" in unfit[0]


def test_rows_with_one_sharding_key_go_out_in_their_order_however_many_there_are(tmp_path: Path) -> None:
    conf = {"warehouse": str(tmp_path / "warehouse"), "kafka.bootstrap_servers": "localhost:9092"}
    to: Any = sink(conf, "orders", name="export", group="nightly")
    lake, sent = InMemoryCoordinator(), dict[str, Any]()
    keys = ["a", "b", "c", None]
    with lake.producer("nightly") as producer:
        rows = [row(body=str(number), sharding_key=keys[number % 4]) for number in range(5_000)]
        to._send(producer, enumerate(rows), sent, [])
        assert len(sent) <= 10
        for transaction in sent.values():
            transaction.commit()
    shown = sorted(lake.messages("orders"), key=lambda message: int(message.position.split("-")[2]))
    assert len(shown) == 5_000
    for key in (b"a", b"b", b"c"):
        numbers = [int(message.body) for message in shown if message.sharding_key == key]
        assert numbers == sorted(numbers)
