"""Messages as programs make them, and batches of them: what they may hold, packed, read back, and lists cut to size."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.message_values import Name, Number
from tests.support.namespace import Listener

from commitlake import ArgumentError, AsyncTransactionMQProducer, LocalTransactionState, Message, RefusedSendError
from commitlake.clients.producer import default
from commitlake.config import KafkaConfig
from commitlake.errors import RecordError
from commitlake.protocol import message_batch
from commitlake.protocol.message_batch import Member
from commitlake.protocol.wire import MessageRecord
from commitlake.testing import InMemoryCoordinator, codecs
from commitlake.testing.producer import MemoryEngine, MemoryLink


@pytest.fixture
def lake() -> InMemoryCoordinator:
    return InMemoryCoordinator()


def every_send(lake: InMemoryCoordinator, message: Message) -> dict[str, Callable[[], object]]:
    """The ways in which a program can send a message."""
    plain, shop = lake.producer("plain"), lake.producer("shop", Listener())

    def part() -> object:
        with shop.begin_transaction() as transaction:
            return transaction.send(message)

    async def on_a_loop() -> object:
        async with AsyncTransactionMQProducer("loop", bootstrap_servers="memory:9092") as sender:
            return await sender.send(message)

    def asynchronous() -> object:
        conf = KafkaConfig("memory:9092", "commitlake.", queues=4, options={})
        link = MemoryLink(conf, MemoryEngine("commitlake.", 4, lake.append), lambda: lake.settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(default, "KafkaLink", lambda *_: link)
            return asyncio.run(on_a_loop())

    return {
        "single": lambda: plain.send(message),
        "batch": lambda: plain.send([message]),
        "transaction": lambda: shop.send_message_in_transaction(message),
        "part": part,
        "asynchronous": asynchronous,
    }


WAYS = ["single", "batch", "transaction", "part", "asynchronous"]


@pytest.mark.parametrize("way", WAYS)
def test_members_of_enums_are_what_they_stand_for_in_every_way_of_sending(lake: InMemoryCoordinator, way: str) -> None:
    message = Message(
        Name.ORDERS,
        bytearray(b"a book"),  # type: ignore[arg-type]
        tags=Name.PAID,
        keys=Name.PAID,
        properties={Name.PAID: Name.PAID},
        queue_id=Number.THREE,
        message_id=Name.PAID,
    )
    every_send(lake, message)[way]()
    lake.advance("1h")
    found = [m for m in lake.messages("orders") if m.body == b"a book"]
    told = [(m.tags, m.keys, m.properties, m.queue_id, m.message_id) for m in found]
    assert told == [("paid", "paid", {"paid": "paid"}, 3, "paid")]
    assert lake.rejected == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("topic", None, "the topic is None; it must be a string"),
        ("body", 5, "the body is 5; it must be bytes"),
        ("tags", "a||b", "no filter can select"),
        ("keys", 17, "Message.keys is 17; it must be a string"),
        ("queue_id", "1", "the queue id is '1'; it must be a whole number"),
        ("queue_id", True, "the queue id is True; it must be a whole number"),
        ("sharding_key", 17, "Message.sharding_key is 17; it must be bytes"),
        ("properties", None, "Message.properties is None; it must be a dict"),
        ("properties", MappingProxyType({"a": "b"}), "it must be a dict"),
        ("properties", {"a": 5}, "property 'a' is 5; its name and value must be strings"),
        ("properties", {"DELAY": "3"}, "property 'DELAY' has a name of the protocol"),
        ("deliver_at", int(time.time()), "which is more than a year ago; give ms since epoch"),
        ("delay_seconds", 1.0j, "delay_seconds is 1j; give seconds from 0 up"),
        ("message_id", 5, "Message.message_id is 5"),
    ],
)
def test_what_can_not_land_is_refused_before_anything_is_sent_in_every_way(
    lake: InMemoryCoordinator, way: str, name: str, value: object, error: str
) -> None:
    message = Message("orders", "a book", keys="17")
    setattr(message, name, value)
    send = every_send(lake, message)[way]
    is_first = way == "batch" and name.startswith("del")  # a batch has no delay of any kind
    with pytest.raises(RefusedSendError, match=re.escape("send it alone" if is_first else error)):
        send()
    lake.advance("1h")
    assert (lake.messages("orders"), lake.rejected) == ([], [])


def test_a_group_that_is_a_member_of_an_enum_commits_and_is_asked(lake: InMemoryCoordinator) -> None:
    sent = lake.producer(Name.PAID, Listener(LocalTransactionState.UNKNOW)).send_message_in_transaction(
        Message("orders", "x")
    )
    lake.advance("1m")
    assert {check.producer_group for check in lake.checks} == {"paid"}
    assert lake.outcome(str(sent.transaction_id)).state == "COMMITTED"
    assert lake.rejected == []


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message)), dataclasses.replace],
    ids=["copy", "deepcopy", "pickle", "replace"],
)
def test_a_copy_of_a_message_that_was_sent_is_another_message(copied: Callable[[Message], Message]) -> None:
    lake = InMemoryCoordinator({"topics.dedup": {"orders": {"by": "message_id", "window": "1d"}}})
    producer, message = lake.producer("shop"), Message("orders", "first", properties={"a": "b"})
    producer.send(message)
    other = copied(message)
    other.body, other.properties["a"] = "second", "c"
    producer.send(other)
    producer.send(message)  # itself again
    lake.advance("5s")
    assert [(m.body, m.properties) for m in lake.messages("orders")] == [
        (b"first", {"a": "b"}),
        (b"second", {"a": "c"}),
    ]
    batch = [copied(message), copied(other)]
    producer.send(batch)
    assert len({m.message_id for m in (message, other, *batch, *map(copied, batch))}) == 5  # the last two have none yet
    chosen = copied(Message("orders", "x", message_id="order-17"))
    assert chosen.message_id == "order-17"


@pytest.mark.parametrize("given", [None, 5, "orders", b"orders", [1], [None], {"topic": "orders"}])
def test_what_is_no_message_is_refused(lake: InMemoryCoordinator, given: Any) -> None:
    producer = lake.producer("shop", Listener())
    later = producer.send(Message("orders", "x", delay_seconds=5)).recall_handle
    transaction = producer.begin_transaction()
    calls: list[Callable[[], object]] = [
        lambda: producer.send(given),
        lambda: producer.send_message_in_transaction(given),
        lambda: transaction.send(given),
        lambda: producer.reschedule(str(later), given),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match="allowed is a Message; nothing was sent"):
            call()
    assert transaction.send(Message("orders", "x")).transaction_id, "it goes on"
    messages = [Message("orders", "x") for _ in range(3)]
    assert producer.split(each for each in messages) == [messages]  # type: ignore[arg-type]


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
