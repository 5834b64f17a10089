"""Batches: packed, read back, refused whole, and long lists cut to size."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlake.errors import RecordError
from commitlake.protocol import message_batch
from commitlake.protocol.message_batch import Member
from commitlake.testing import codecs

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def member(body: bytes = b"x", **properties: str) -> Member:
    return Member(body, {"UNIQ_KEY": "id", **properties})


def unpack(value: bytes, count: Any = 1, topic: Any = "orders", **headers: str) -> list[Member]:
    return codecs.unpack(value, count, topic, headers)


@given(BODIES)
def test_what_is_packed_is_read_back(bodies: list[bytes]) -> None:
    members = [member(body, UNIQ_KEY=str(at), color="rot ü") for at, body in enumerate(bodies)]
    assert unpack(message_batch.pack(members), len(members)) == members


@given(BODIES, st.integers(min_value=110, max_value=600))
def test_a_long_list_is_split_in_order_into_the_fewest_batches(bodies: list[bytes], most: int) -> None:
    members = [member(body) for body in bodies]
    if any(len(message_batch.pack([each])) > most for each in members):
        with pytest.raises(RecordError) as error:
            message_batch.split(members, message_batch.packed_size, most)
        assert error.value.reason == "BODY_TOO_LARGE"
        return
    parts = list(message_batch.split(members, message_batch.packed_size, most))
    assert [each for part in parts for each in part] == members
    assert all(len(message_batch.pack(part)) <= most for part in parts)
    for part, following in itertools.pairwise(parts):
        assert len(message_batch.pack([*part, following[0]])) > most


def test_an_empty_list_is_split_into_no_batches() -> None:
    assert list(message_batch.split([], message_batch.packed_size, 10)) == []


@pytest.mark.parametrize("count", [0, 2, -1])
def test_a_count_that_is_not_the_lists_length_is_refused(count: int) -> None:
    with pytest.raises(RecordError) as error:
        unpack(message_batch.pack([member()]), count)
    assert error.value.reason == "BAD_BATCH"


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(RecordError):
        unpack(message_batch.pack([]), 0)


GOOD = {"body": "eA==", "properties": {"UNIQ_KEY": "id"}}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "x",
        {**GOOD, "body": None},
        {**GOOD, "body": "e"},
        {**GOOD, "body": "e A=="},
        {**GOOD, "body": "ü"},
        {"properties": {"UNIQ_KEY": "id"}},
        {"body": "eA=="},
        {**GOOD, "properties": {}},
        {**GOOD, "properties": {"UNIQ_KEY": ""}},
        {**GOOD, "properties": {"UNIQ_KEY": "x" * 256}},
        {**GOOD, "properties": {"UNIQ_KEY": 7}},
        *(
            {**GOOD, "properties": {"UNIQ_KEY": "id", name: "1"}}
            for name in (
                "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
                "TRAN_MSG", "__transactionId__", "FIRST_HALF", "CHECK_IMMUNITY_TIME_IN_SECONDS",
            )
        ),
        {**GOOD, "properties": {"UNIQ_KEY": "id", "REAL_TOPIC": "points"}},
    ],
)  # fmt: skip
def test_one_bad_member_refuses_the_whole_batch(entry: object) -> None:
    with pytest.raises(RecordError) as error:
        unpack(json.dumps({"messages": [GOOD, entry]}).encode(), 2)
    assert error.value.reason == "BAD_BATCH"


def test_a_member_may_name_the_topic_of_its_batch() -> None:
    assert len(unpack(message_batch.pack([member(REAL_TOPIC="orders")]))) == 1


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"messages":{}}', b"\xff", b'{"messages":[]} x'])
def test_a_value_that_is_no_batch_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError) as error:
        unpack(value)
    assert error.value.reason == "BAD_BATCH"


@pytest.mark.parametrize("header", ["DELAY", "TIMER_DELIVER_MS", "TRAN_MSG", "__transactionId__"])
def test_a_batch_with_a_delay_or_a_transaction_of_its_own_is_refused(header: str) -> None:
    with pytest.raises(RecordError) as error:
        unpack(message_batch.pack([member()]), **{header: "1"})
    assert error.value.reason == "BAD_BATCH"


def test_a_retry_topic_takes_no_batch() -> None:
    with pytest.raises(RecordError) as error:
        unpack(message_batch.pack([member()]), topic="%RETRY%group")
    assert error.value.reason == "BAD_BATCH"
