"""Batches: packed, read back, and long lists cut to size.

What is no batch: tests/spark/test_landing_records.py, also for the coordinator in memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
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


def test_a_joined_batch_has_at_most_65_536_members() -> None:
    most = message_batch.MOST_MEMBERS
    parts = list(message_batch.split([Member(b"", {})] * (most + 1), lambda each: each, 1 << 30, is_joined=True))
    assert [len(part) for part in parts] == [most, 1]
    value, head = message_batch.join([Member(b"", {"UNIQ_KEY": "m"})] * (most + 1), "b")
    with pytest.raises(RecordError, match="there are 65537 members"):
        unpack(value, most + 1, head=head)


@pytest.mark.parametrize("is_joined", [True, False])
def test_the_key_of_a_batch_takes_64_mib_for_all_members_at_most(is_joined: bool) -> None:
    members = [Member(b"", {"UNIQ_KEY": "m"})] * 1_024
    value, head = message_batch.join(members, "b") if is_joined else (message_batch.pack(members), None)
    fits = MessageRecord(
        topic="orders", msg_id="batch", body=value, sharding_key=b"k" * (1 << 16), batch=1_024, batch_head=head
    )
    assert len(codecs.unpack(fits, {})) == 1_024
    with pytest.raises(RecordError, match="1024 members with a key of 65537 bytes") as error:
        codecs.unpack(replace(fits, sharding_key=b"k" * ((1 << 16) + 1)), {})
    assert error.value.reason == "BAD_BATCH"
