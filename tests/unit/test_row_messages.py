"""Rows of a sink as messages."""

from __future__ import annotations

from typing import Any

import pytest

from commitlake.errors import RecordError
from commitlake.writing.row_messages import message_of


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
