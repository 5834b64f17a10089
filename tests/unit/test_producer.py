"""The producer's parts that need no broker: messages, records, recall handles, commit progress."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlake.errors import MQClientException, RecordError
from commitlake.producer import DefaultMQProducer, LocalTransactionState, Message, TransactionMQProducer
from commitlake.producer.check_progress import Progress
from commitlake.producer.recall_handle import decode_handle, encode_handle
from commitlake.producer.record_maker import RecordMaker
from commitlake.protocol import headers, wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import RecallRecord

SETTINGS = wire.Settings(
    max_message_size=1_000,
    delay_levels=("1s", "5s"),
    delay_max_ms=60_000,
    reject_transactions=False,
    queues=4,
    max_queues=64,
    topics_allowed=("*",),
    topics_max=10,
    topics=(),
)
MAKER = RecordMaker("group", SETTINGS)


def test_rocketmqs_spelling_of_unknown_and_the_usual_one_are_the_same() -> None:
    assert LocalTransactionState["UNKNOW"] is LocalTransactionState["UNKNOWN"]


@pytest.mark.parametrize("name", sorted(headers.RESERVED_HEADERS - {headers.CHECK_IMMUNITY}))
def test_no_user_property_may_have_a_name_of_the_protocol(name: str) -> None:
    with pytest.raises(MQClientException, match=name):
        Message("orders", b"").put_user_property(name, "x")
    with pytest.raises(MQClientException, match=name):
        Message("orders", b"", properties={name: "x"})


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a", ""), ("a", None), (None, "x"), ("a", 7)])
def test_a_user_property_is_a_name_and_a_text(name: Any, value: Any) -> None:
    with pytest.raises(MQClientException):
        Message("orders", b"").put_user_property(name, value)


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("0", 0), ("-1", None), ("1.5", None)])
def test_the_immunity_may_be_set_as_the_property_it_is_in_rocketmq(text: str, seconds: int | None) -> None:
    message = Message("orders", b"", properties={headers.CHECK_IMMUNITY: text})
    assert message.properties == {}
    assert MAKER.half(message).check_immunity_s == seconds


def test_two_messages_share_no_properties() -> None:
    given_ones = {"a": "1"}
    first, second = Message("orders", b"", properties=given_ones), Message("orders", b"")
    first.put_user_property("b", "2")
    assert (given_ones, second.properties) == ({"a": "1"}, {})
    assert first.get_user_property("b") == "2"
    assert second.get_user_property("b") is None


def test_every_send_has_a_message_and_transaction_id_of_its_own() -> None:
    message = Message("orders", b"")
    first = MAKER.half(message)
    message.msg_id, message.transaction_id = first.msg_id, first.transaction_id
    second = MAKER.half(message)
    assert first.transaction_id == first.msg_id != second.msg_id == second.transaction_id


def test_a_transaction_id_that_the_application_sets_stays() -> None:
    message = Message("orders", b"", transaction_id="order-17")
    first = MAKER.half(message)
    message.msg_id, message.transaction_id = first.msg_id, first.transaction_id
    assert (first.transaction_id, MAKER.half(message).transaction_id) == ("order-17", "order-17")


@pytest.mark.parametrize(
    ("fields", "delays"),
    [
        ({"delay_time_level": 2}, {headers.DELAY: "2"}),
        ({"delay_seconds": 10}, {headers.TIMER_DELAY_SEC: "10"}),
        ({"delay_milliseconds": 10}, {headers.TIMER_DELAY_MS: "10"}),
        ({"deliver_at": 1_767_225_600_000}, {headers.TIMER_DELIVER_MS: "1767225600000"}),
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, {headers.TIMER_DELIVER_MS: "1767225600000"}),
        ({"deliver_at": datetime(2026, 1, 1, 0, 0, 0, 1_000, UTC)}, {headers.TIMER_DELIVER_MS: "1767225600001"}),
    ],
)
def test_a_delay_becomes_its_header(fields: dict[str, Any], delays: dict[str, str]) -> None:
    far = RecordMaker("group", dataclasses.replace(SETTINGS, delay_max_ms=2**53))
    assert far.message(Message("orders", b"", **fields)).delays == delays


def test_a_time_without_a_zone_is_a_bad_delay() -> None:
    with pytest.raises(RecordError) as error:
        MAKER.message(Message("orders", b"", deliver_at=datetime(2026, 1, 1)))  # noqa: DTZ001 - what is refused
    assert error.value.reason == "BAD_DELAY"


@pytest.mark.parametrize("fields", [{"queue_id": 99}, {"delay_seconds": 1.5}, {"body": b"x" * 1_001}])
def test_a_topic_that_is_not_allowed_is_the_first_reason(fields: dict[str, Any]) -> None:
    maker = RecordMaker("group", dataclasses.replace(SETTINGS, topics_allowed=("points",)))
    with pytest.raises(RecordError) as error:
        maker.message(Message(**{"topic": "orders", "body": b"", **fields}))
    assert error.value.reason == "TOPIC_NOT_ALLOWED"


def test_a_string_body_is_sent_as_utf8_and_an_empty_one_is_a_body() -> None:
    assert MAKER.message(Message("orders", "ü")).body == b"\xc3\xbc"
    assert MAKER.message(Message("orders", b"")).body == b""


@pytest.mark.parametrize("group", ["", "x" * 256, None])
def test_a_producer_group_has_1_to_255_characters(group: Any) -> None:
    for kind in (DefaultMQProducer, TransactionMQProducer):
        with pytest.raises(MQClientException) as error:
            kind(group, bootstrap_servers="127.0.0.1:1")
        assert error.value.reason == "MISSING_PRODUCER_GROUP"


def test_a_recall_handle_names_its_message() -> None:
    recall = RecallRecord(msg_id="A1", topic="%RETRY%x", message=Position(3, 2**40))
    assert decode_handle(encode_handle(recall)) == recall


@pytest.mark.parametrize(
    "handle", ["", None, "%%%", "djE=", "djIgdCAwLTEgbQ==", "djEgdCAwOjEgbQ==", "djEgdCAwLTEgbSBt"]
)
def test_anything_else_is_no_recall_handle(handle: Any) -> None:
    with pytest.raises(MQClientException, match="recall handle"):
        decode_handle(handle)


@given(st.permutations(range(12)), st.integers(min_value=0, max_value=12))
def test_progress_stands_at_the_first_offset_that_is_not_done(order: list[int], count: int) -> None:
    progress = Progress()
    for offset in range(12):
        progress.begin(100 + offset)
    for offset in order[:count]:
        progress.done(100 + offset)
        progress.done(100 + offset)
    assert progress.position == 100 + min(order[count:], default=12)


def test_progress_starts_at_0_and_passes_offsets_that_kafka_left_out() -> None:
    progress = Progress()
    assert progress.position == 0
    progress.begin(7)
    progress.begin(30)
    progress.done(7)
    assert progress.position == 30
    progress.done(30)
    assert progress.position == 31


@pytest.mark.parametrize(
    "given",
    [("orders", "TagA", "KEY1", b"body"), ("orders", "TagA", b"body"), ("orders", "TagA", "KEY1", "body")],
)
def test_rocketmqs_order_of_arguments_is_refused_with_ours(given: tuple[Any, ...]) -> None:
    with pytest.raises(MQClientException, match=r"RocketMQ's Message\(topic, tags, keys, body\)"):
        Message(*given)


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"topic": b"orders", "body": b""}, "Message.topic is b'orders', allowed is str"),
        ({"topic": "orders", "body": 7}, "Message.body is 7, allowed is bytes or str"),
        ({"topic": "orders", "body": b"", "keys": b"order-1"}, "Message.keys is b'order-1', allowed is str or None"),
        ({"topic": "orders", "body": b"", "tags": 5}, "Message.tags is 5, allowed is str or None"),
    ],
)
def test_what_is_not_text_is_refused(named: dict[str, Any], text: str) -> None:
    with pytest.raises(MQClientException) as caught:
        Message(**named)
    assert text in str(caught.value)
    assert "where RocketMQ's is (topic, tags, keys, body)" in str(caught.value)


def test_an_unknown_client_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(MQClientException, match="did you mean compression_type"):
        DefaultMQProducer("group", bootstrap_servers="nowhere:9092", client_options={"compresion_type": "gzip"})
