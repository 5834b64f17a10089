"""Batches: packed, read back, refused whole, and long lists cut to size."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlake.errors import RecordError
from commitlake.protocol import message_batch
from commitlake.protocol.message_batch import Member
from commitlake.protocol.wire import MessageRecord
from commitlake.testing import codecs

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def member(body: bytes = b"x", **properties: str) -> Member:
    return Member(body, {"UNIQ_KEY": "id", **properties})


def unpack(value: bytes, count: Any = 1, topic: Any = "orders", head: int | None = None) -> list[Member]:
    record = MessageRecord(topic=topic, msg_id="batch", body=value, batch=count, batch_head=head)
    return codecs.unpack(record, {})


@given(BODIES)
def test_what_is_packed_is_read_back(bodies: list[bytes]) -> None:
    members = [member(body, UNIQ_KEY=str(at), color="rot ü") for at, body in enumerate(bodies)]
    assert unpack(message_batch.pack(members), len(members)) == members


PROPERTIES = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "color"]), st.text('aü\0"', max_size=5))


@given(st.lists(st.tuples(st.binary(max_size=40), PROPERTIES, st.booleans()), min_size=1, max_size=30))
def test_both_forms_of_a_batch_are_read_back_as_the_same_members(given_ones: list[Any]) -> None:
    members = [
        member(body, **properties, UNIQ_KEY=f"own {at}" if has_own else message_batch.member_id("batch", at))
        for at, (body, properties, has_own) in enumerate(given_ones)
    ]
    value, head = message_batch.join(members, "batch")
    joined = unpack(value, len(members), head=head)
    assert joined == unpack(message_batch.pack(members), len(members)) == members


@pytest.mark.parametrize("size", [256, 1_024])
def test_a_joined_batch_takes_at_most_a_tenth_more_than_its_bodies(size: int) -> None:
    members = [member(os.urandom(size), UNIQ_KEY=message_batch.member_id("batch", at)) for at in range(1_000)]
    value, _ = message_batch.join(members, "batch")
    assert len(value) <= 1.1 * 1_000 * size


PACK: Any = (False, message_batch.pack)
JOIN: Any = (True, lambda members: message_batch.join(members, "batch").value)


@pytest.mark.parametrize(("is_joined", "form"), [PACK, JOIN])
@given(bodies=BODIES, most=st.integers(min_value=60, max_value=600))
def test_a_long_list_is_split_in_order_into_the_fewest_batches(
    is_joined: bool, form: Any, bodies: list[bytes], most: int
) -> None:
    def split() -> Iterator[list[Member]]:
        return message_batch.split(members, lambda each: each, most, is_joined=is_joined)

    members = [member(body) for body in bodies]
    if any(len(form([each])) > most for each in members):
        with pytest.raises(RecordError) as error:
            split()
        assert error.value.reason == "BODY_TOO_LARGE"
        return
    parts = list(split())
    assert [each for part in parts for each in part] == members
    assert all(len(form(part)) <= most for part in parts)
    for part, following in itertools.pairwise(parts):
        assert len(form([*part, following[0]])) > most


@pytest.mark.parametrize("is_joined", [True, False])
def test_an_empty_list_is_split_into_no_batches(is_joined: bool) -> None:
    assert list(message_batch.split([], lambda each: each, 10, is_joined=is_joined)) == []


@pytest.mark.parametrize(
    ("ends", "properties", "bodies"),
    [
        ([1], [{}], b""),
        ([1], [{}], b"ab"),
        ([2, 1, 3], [{}, {}, {}], b"abc"),
        ([-1, 1], [{}, {}], b"a"),
        ([1.0], [{}], b"a"),
        ([True], [{}], b"a"),
        (["1"], [{}], b"a"),
        (None, [{}], b"a"),
        ([1], {}, b"a"),
        ([1], [None], b"a"),
        ([1], [{"UNIQ_KEY": ""}], b"a"),
        ([1], [{"a": 7}], b"a"),
        ([1], [{"DELAY": "1"}], b"a"),
        ([1], [{"REAL_TOPIC": "points"}], b"a"),
        ([1, 2], [{}], b"ab"),
        ([], [], b""),
    ],
)
def test_a_joined_batch_with_bad_ends_or_properties_is_refused(ends: Any, properties: Any, bodies: bytes) -> None:
    head = json.dumps({"ends": ends, "properties": properties}).encode()
    with pytest.raises(RecordError) as error:
        unpack(head + bodies, len(ends or [1]), head=len(head))
    assert error.value.reason == "BAD_BATCH"


@pytest.mark.parametrize("more", [b'"ends":[1]', b'"x":NaN'])
def test_a_head_that_landing_does_not_read_is_refused(more: bytes) -> None:
    head = b'{"ends":[1],"properties":[{}],' + more + b"}"
    with pytest.raises(RecordError, match=r"a name twice|NaN is no JSON"):
        unpack(head + b"a", 1, head=len(head))


def test_a_joined_batch_has_at_most_65_536_members() -> None:
    most = message_batch.MOST_MEMBERS
    parts = list(message_batch.split([Member(b"", {})] * (most + 1), lambda each: each, 1 << 30, is_joined=True))
    assert [len(part) for part in parts] == [most, 1]
    value, head = message_batch.join([Member(b"", {"UNIQ_KEY": "m"})] * (most + 1), "b")
    with pytest.raises(RecordError, match="there are 65537 members"):
        unpack(value, most + 1, head=head)


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


GOOD_BATCH = message_batch.pack([member()])


@pytest.mark.parametrize("header", ["DELAY", "TIMER_DELIVER_MS", "TRAN_MSG", "__transactionId__"])
def test_a_batch_with_a_delay_or_a_transaction_of_its_own_is_refused(header: str) -> None:
    with pytest.raises(RecordError) as error:
        codecs.unpack(MessageRecord(topic="orders", msg_id="batch", body=GOOD_BATCH, batch=1), {header: "1"})
    assert error.value.reason == "BAD_BATCH"


def test_a_retry_topic_takes_no_batch() -> None:
    with pytest.raises(RecordError) as error:
        unpack(message_batch.pack([member()]), topic="%RETRY%group")
    assert error.value.reason == "BAD_BATCH"
