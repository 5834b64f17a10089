"""The producer's parts that need no broker: messages, records, recall handles, commit progress."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaTimeoutError
from tests.support.memory_kafka import SETTINGS

from commitlake.clients.producer import (
    AsyncTransactionMQProducer,
    DefaultMQProducer,
    LocalTransactionState,
    Message,
    TransactionMQProducer,
    confluent,
    connection,
)
from commitlake.clients.producer.check_reader import CheckProgress
from commitlake.clients.producer.confluent import ConfluentEngine
from commitlake.clients.producer.connection import SettingsReader
from commitlake.clients.producer.kafka_python import KafkaPythonEngine
from commitlake.clients.producer.link import KafkaLink
from commitlake.clients.producer.record_maker import RecordMaker
from commitlake.errors import ArgumentError, ConfigError, FailedSendError, ProducerError, RecordError, SetupError
from commitlake.protocol import headers, wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.recall_handle import decode_handle, encode_handle
from commitlake.protocol.wire import RecallRecord
from commitlake.testing import codecs

MAKER = RecordMaker("group", SETTINGS)
RECORD = wire.Encoded(None, b"body", [])


def test_rocketmqs_spelling_of_unknown_and_the_usual_one_are_the_same() -> None:
    assert LocalTransactionState["UNKNOW"] is LocalTransactionState["UNKNOWN"]


@pytest.mark.parametrize("name", sorted(headers.RESERVED_HEADERS - {headers.CHECK_IMMUNITY}))
def test_no_user_property_may_have_a_name_of_the_protocol(name: str) -> None:
    with pytest.raises(ProducerError, match=name):
        Message("orders", b"").put_user_property(name, "x")
    with pytest.raises(ProducerError, match=name):
        Message("orders", b"", properties={name: "x"})


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a", ""), ("a", None), (None, "x"), ("a", 7)])
def test_a_user_property_is_a_name_and_a_text(name: Any, value: Any) -> None:
    with pytest.raises(ProducerError):
        Message("orders", b"").put_user_property(name, value)


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("0", 0), ("-1", None), ("1.5", None), ("9" * 5_000, None)])
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


def sent(message: Message, first: wire.HalfRecord | None = None) -> wire.HalfRecord:
    """The record of a half message, as a producer sends it."""
    record = MAKER.half(message, first, Position(0, 0) if first else None)
    message.take_part_in(record.transaction_id)
    return record


def test_every_send_of_a_message_has_its_id_and_a_transaction_of_its_own() -> None:
    message = Message("orders", b"")
    records = [sent(message) for _ in range(3)]
    assert {record.msg_id for record in records} == {message.message_id}
    assert records[0].transaction_id == message.message_id == message.msg_id
    assert len({record.transaction_id for record in records}) == 3
    assert message.transaction_id == records[2].transaction_id
    assert sent(Message("orders", b"")).msg_id != message.message_id


def test_a_message_id_may_be_given_and_stands_for_no_transaction() -> None:
    """Another process may have sent it before, in a transaction with another outcome."""
    record = sent(Message("orders", b"", message_id="order 17"))
    assert record.msg_id == "order 17" != record.transaction_id
    assert MAKER.message(Message("orders", b"", message_id="x" * 255)).msg_id == "x" * 255


def test_a_part_that_is_sent_again_is_in_another_transaction() -> None:
    first, part = Message("orders", b""), Message("points", b"")
    whole = sent(first)
    assert sent(part, whole).transaction_id == part.transaction_id == whole.transaction_id
    again = sent(part)
    assert again.msg_id == part.message_id
    assert again.transaction_id not in (whole.transaction_id, whole.msg_id)
    assert sent(replace(part)).transaction_id not in (whole.transaction_id, again.transaction_id)


def test_a_transaction_id_that_the_application_sets_stays() -> None:
    message = Message("orders", b"", transaction_id="order-17")
    assert [sent(message).transaction_id for _ in range(2)] == ["order-17", "order-17"]
    same = Message("orders", b"", transaction_id="order-17", message_id="order-17")
    assert [sent(same).transaction_id for _ in range(2)] == ["order-17", "order-17"]


def test_members_of_a_batch_keep_their_ids_and_the_batch_has_another_one_each_time() -> None:
    members = [Message("orders", b"1"), Message("orders", b"2", message_id="two")]
    (record, ids), (second, again) = MAKER.batch(members), MAKER.batch(members)
    assert ids == again == [message.message_id for message in members]
    assert ids[1] == "two"
    assert len({record.msg_id, second.msg_id, *ids}) == 4


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("orders", b""), Message("points", b"")],
        [Message("orders", b""), Message("orders", b"", delay_time_level=1)],
        [Message("orders", b"", deliver_at=10**13)],
        [Message("orders", b"", check_immunity_seconds=5)],
        [Message("%RETRY%group", b"")],
    ],
)
def test_a_batch_with_one_bad_member_is_refused_whole(messages: list[Message]) -> None:
    with pytest.raises(RecordError) as error:
        MAKER.batch(messages)
    assert error.value.reason == "BAD_BATCH"


JOINING = RecordMaker("group", replace(SETTINGS, batch_head=True))


LARGE = replace(SETTINGS, max_message_size=1 << 20)


@pytest.mark.parametrize("is_joined", [False, True])
def test_the_key_of_a_batch_takes_64_mib_for_all_members_at_most(is_joined: bool) -> None:
    """Each row has it."""
    maker = RecordMaker("group", replace(LARGE, batch_head=is_joined))
    messages = [Message("orders", b"", sharding_key=b"k" * (1 << 16)) for _ in range(1_025)]
    with pytest.raises(RecordError, match="1025 messages with a sharding key of 65536 bytes") as error:
        maker.batch(messages)
    assert (error.value.reason, {message.message_id for message in messages}) == ("BAD_BATCH", {None})
    record, ids = maker.batch(messages[:-1])
    assert len(codecs.unpack(record, {})) == len(ids) == 1_024


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_list_with_a_large_key_is_split_into_batches_that_are_taken(is_joined: bool) -> None:
    maker = RecordMaker("group", replace(LARGE, batch_head=is_joined))
    messages = [Message("orders", b"", sharding_key=b"k" * (1 << 20)) for _ in range(130)]
    parts = maker.split(messages)
    assert [len(maker.batch(part)[1]) for part in parts] == [64, 64, 2]


def test_a_key_that_no_batch_can_have_is_refused_before_a_list_is_split() -> None:
    message = Message("orders", b"", sharding_key=b"k" * ((64 << 20) + 1))
    with pytest.raises(RecordError, match="send its message alone") as error:
        MAKER.split([message])
    assert error.value.reason == "BAD_BATCH"
    assert MAKER.message(message).sharding_key == message.sharding_key


@pytest.mark.parametrize("maker", [MAKER, JOINING])
def test_members_without_an_id_have_that_of_the_batch_and_their_index(maker: RecordMaker) -> None:
    twice = Message("orders", b"2")
    record, ids = maker.batch([Message("orders", b"1", message_id="own"), twice, twice])
    assert ids == ["own", f"{record.msg_id}-1", f"{record.msg_id}-1"]
    assert [each.properties["UNIQ_KEY"] for each in codecs.unpack(record, {})] == ids
    assert twice.message_id == ids[1]


@pytest.mark.parametrize(
    "given", [{"tags": "a\ud800"}, {"keys": "a\ud800"}, {"properties": {"a": "\ud800"}}, {"properties": {"a\0": "b"}}]
)
@pytest.mark.parametrize("is_joined", [False, True])
def test_a_batch_takes_no_text_that_a_single_message_may_not_have(given: dict[str, Any], is_joined: bool) -> None:
    """JSON writes it, and its row would have another text."""
    maker = RecordMaker("group", replace(SETTINGS, batch_head=is_joined))
    with pytest.raises(RecordError, match=r"UTF-8|NUL"):
        maker.batch([Message("orders", b"body"), Message("orders", b"body", **given)])


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_list_with_a_message_twice_is_split_into_batches_that_can_be_sent(is_joined: bool) -> None:
    maker = RecordMaker("group", replace(SETTINGS, batch_head=is_joined, max_message_size=4_000))
    parts = list(maker.split([Message("orders", b"12345678")] * 400))
    assert sum(map(len, parts)) == 400
    assert all(len(maker.batch(part)[0].body) <= 4_000 for part in parts)


def test_bodies_are_joined_only_for_a_coordinator_that_says_it_reads_them() -> None:
    messages = [Message("orders", b"\xff"), Message("orders", b"b")]
    old, new = MAKER.batch(messages)[0], JOINING.batch(messages)[0]
    assert old.batch_head is None and json.loads(old.body)["messages"][0]["body"] == "/w=="
    assert new.batch_head is not None and new.body[new.batch_head :] == b"\xffb"
    assert codecs.unpack(old, {}) == codecs.unpack(new, {})


@pytest.mark.parametrize("maker", [MAKER, JOINING])
def test_each_part_of_a_split_list_fits_and_a_refused_batch_gives_no_ids(maker: RecordMaker) -> None:
    messages = [Message("orders", b"x" * 90) for _ in range(40)]
    with pytest.raises(RecordError, match="max_message_size"):
        maker.batch(messages)
    assert {message.message_id for message in messages} == {None}
    for part in maker.split(messages):
        assert len(maker.batch(part)[0].body) <= SETTINGS.max_message_size


BAD_IDS = [("", "0 characters"), ("x" * 256, "256 characters"), (17, "int"), (b"17", "bytes"), ("\udcff", "surrogate")]


@pytest.mark.parametrize(("message_id", "wrong"), BAD_IDS)
def test_a_message_id_is_a_text_of_1_to_255_characters(message_id: Any, wrong: str) -> None:
    with pytest.raises(ProducerError, match=f"{wrong}.*1 to 255 characters; shorten it") as refused:
        Message("orders", b"", message_id=message_id)
    assert refused.value.reason == "MISSING_UNIQ_KEY"
    later = Message("orders", b"")
    later.message_id = message_id
    for make in (MAKER.message, MAKER.half, lambda message: MAKER.batch([message])):
        with pytest.raises(RecordError, match=wrong) as error:
            make(later)
        assert error.value.reason == "MISSING_UNIQ_KEY"


@pytest.mark.parametrize(
    ("fields", "delays"),
    [
        ({"delay_time_level": 2}, {headers.DELAY: "2"}),
        ({"delay_seconds": 10}, {headers.TIMER_DELAY_SEC: "10"}),
        ({"delay_seconds": "3h"}, {headers.TIMER_DELAY_MS: "10800000"}),
        ({"delay_seconds": 1.5, "delay_milliseconds": 1}, {headers.TIMER_DELAY_MS: "1500"}),
        ({"delay_seconds": timedelta(minutes=1)}, {headers.TIMER_DELAY_MS: "60000"}),
        ({"delay_milliseconds": 10}, {headers.TIMER_DELAY_MS: "10"}),
        ({"delay_milliseconds": 10.4}, {headers.TIMER_DELAY_MS: "10"}),
        ({"delay_milliseconds": np.int64(10)}, {headers.TIMER_DELAY_MS: "10"}),
        ({"delay_milliseconds": "15s"}, {headers.TIMER_DELAY_MS: "15000"}),
        ({"delay_milliseconds": timedelta(seconds=15)}, {headers.TIMER_DELAY_MS: "15000"}),
        ({"deliver_at": 1_767_225_600_000}, {headers.TIMER_DELIVER_MS: "1767225600000"}),
        ({"deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, {headers.TIMER_DELIVER_MS: "1767225600000"}),
        ({"deliver_at": datetime(2026, 1, 1, 0, 0, 0, 1_000, UTC)}, {headers.TIMER_DELIVER_MS: "1767225600001"}),
    ],
)
def test_a_delay_becomes_its_header(fields: dict[str, Any], delays: dict[str, str]) -> None:
    far = RecordMaker("group", dataclasses.replace(SETTINGS, delay_max_ms=2**53))
    assert far.message(Message("orders", b"", **fields)).delays == delays


NO_DELAY: list[Any] = ["soon", timedelta(-1), float("nan"), []]
IN_S, IN_MS = "give seconds from 0 up, a text such as '3h', or a", "give ms from 0 up, a text such as '15s', or a"


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        *(("delay_seconds", given, IN_S) for given in ("1.5s", *NO_DELAY)),
        *(("delay_milliseconds", given, IN_MS) for given in ("15", -0.5, *NO_DELAY)),
        ("deliver_at", datetime(2026, 1, 1), "time zone"),  # noqa: DTZ001 - what is refused
    ],
)
def test_what_is_no_delay_is_a_bad_one(name: str, given: Any, told: str) -> None:
    with pytest.raises(RecordError, match=told) as error:
        MAKER.message(Message("orders", b"", **{name: given}))
    assert error.value.reason == "BAD_DELAY"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (60, 60),
        (np.int64(60), 60),
        (timedelta(seconds=60), 60),
        ("60s", 60),
        ("1m", 60),
        (0, 0),
        (0.2, 1),
        ("1500ms", 2),
        (10**30, 2**31 - 1),
        (None, None),
        (-1, None),  # RocketMQ's
    ],
)
def test_an_immunity_is_a_duration_and_never_shorter_than_given(given: Any, seconds: int | None) -> None:
    """Landing takes whole seconds of at most 18 digits, and counts anything else as no immunity."""
    message = Message("orders", b"", check_immunity_seconds=given)
    assert MAKER.half(message).check_immunity_s == seconds


@pytest.mark.parametrize("given", ["soon", "60", -2, True, timedelta(-1), float("nan"), 1e306, []])
def test_what_is_no_immunity_is_refused(given: Any) -> None:
    with pytest.raises(RecordError, match=r"check_immunity_seconds is .*; give seconds from 0 up"):
        MAKER.half(Message("orders", b"", check_immunity_seconds=given))


@pytest.mark.parametrize("fields", [{"queue_id": 99}, {"delay_seconds": "soon"}, {"body": b"x" * 1_001}])
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
        with pytest.raises(ProducerError) as error:
            kind(group, bootstrap_servers="127.0.0.1:1")
        assert error.value.reason == "MISSING_PRODUCER_GROUP"


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"bootstrap_servers": None}, "bootstrap_servers: None is not allowed; allowed is host:port"),
        ({"bootstrap_servers": "kafka:abc"}, "bootstrap_servers: 'kafka:abc' is not allowed"),
        ({"bootstrap_servers": ["kafka:1", 5]}, "bootstrap_servers: "),
        ({"bootstrap_servers": "embedded"}, "bootstrap_servers: 'embedded' is not allowed"),
        ({"topic_prefix": None}, "topic_prefix: None is not allowed"),
        ({"options": ["acks"]}, "options is not allowed; allowed is a map"),
        ({"options": {"ssl.key.password": ["secret"]}}, "options is not allowed; allowed is a map"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_told(named: dict[str, Any], error: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(error)) as told:
        DefaultMQProducer("group", **{"bootstrap_servers": "kafka:9092", **named})
    assert "secret" not in str(told.value)


def test_addresses_may_be_a_list_and_options_numbers() -> None:
    made = DefaultMQProducer(
        "group",
        bootstrap_servers=["one:9092", "two:9092"],
        options={"request.timeout.ms": 500, "a": True},  # type: ignore[dict-item]
    )
    kafka = made._link.kafka
    assert kafka.bootstrap_servers == "one:9092,two:9092"
    assert dict(kafka.options) == {"request.timeout.ms": "500", "a": "true"}


def test_librdkafka_takes_zstd() -> None:
    DefaultMQProducer("group", bootstrap_servers="one:9092", **confluent_with(compression_type="zstd"))


def test_a_recall_handle_names_its_message() -> None:
    recall = RecallRecord(msg_id="A1", topic="%RETRY%x", message=Position(3, 2**40))
    assert decode_handle(encode_handle(recall)) == recall
    spaced = dataclasses.replace(recall, msg_id="order 17 ")
    assert decode_handle(encode_handle(spaced)) == spaced


@pytest.mark.parametrize("handle", ["", None, "%%%", "djE=", "djIgdCAwLTEgbQ==", "djEgdCAwOjEgbQ=="])
def test_anything_else_is_no_recall_handle(handle: Any) -> None:
    with pytest.raises(ProducerError, match="recall handle"):
        decode_handle(handle)


@given(st.permutations(range(12)), st.integers(min_value=0, max_value=12))
def test_progress_stands_at_the_first_offset_that_is_not_done(order: list[int], count: int) -> None:
    progress = CheckProgress()
    for offset in range(12):
        progress.begin(100 + offset)
    for offset in order[:count]:
        progress.done(100 + offset)
        progress.done(100 + offset)
    assert progress.position == 100 + min(order[count:], default=12)


def test_progress_starts_at_0_and_passes_offsets_that_kafka_left_out() -> None:
    progress = CheckProgress()
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
    with pytest.raises(ProducerError, match=r"RocketMQ's Message\(topic, tags, keys, body\)"):
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
    with pytest.raises(ProducerError) as caught:
        Message(**named)
    assert text in str(caught.value)
    assert "where RocketMQ's is (topic, tags, keys, body)" in str(caught.value)


def confluent_with(**options: object) -> dict[str, Any]:
    return {"engine": "confluent", "client_options": options}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"client_options": [1]}, "client_options: [1] is not allowed; allowed is a dict"),
        ({"client_options": {5: 1}}, "client_options: 5 is not allowed"),
        ({"client_options": {"linger_ms": "5"}}, "client_options: linger_ms is '5', allowed is a number, such as 0"),
        ({"listener": "a listener"}, "'a listener' is no listener, allowed is an object with the methods execute_"),
        ({"threads": 0}, "threads: 0 is not allowed; allowed is a whole number from 1"),
        ({"threads": "8"}, "threads: '8' is not allowed"),
        ({"engine": "rust"}, "engine is 'rust', allowed is kafka-python or confluent"),
        (confluent_with(retries=5), "confluent', which takes batch_size, compression_type, linger_ms"),
        (confluent_with(sasl_mechanism="PLAIN"), "sasl_mechanism is not allowed with engine='confluent'"),
        (confluent_with(acks=1), "acks is not allowed; CommitLake's guarantees need"),
        ({"client_options": {"acks": 1}}, "acks is not allowed; CommitLake's guarantees need"),
        ({"client_options": {"max_block_ms": 5}}, "max_block_ms is not allowed; send_msg_timeout limits the whole"),
        ({"client_options": {"delivery_timeout_ms": 5}}, "delivery_timeout_ms is not allowed; send_msg_timeout"),
        ({"client_options": {"compresion_type": "gzip"}}, "did you mean compression_type"),
        (
            {"options": {"security.protocl": "SSL"}},
            "kafka.options.security.protocl is not allowed; did you mean",
        ),
    ],
)
def test_what_a_producer_can_not_use_is_refused_when_it_is_made(given: dict[str, Any], text: str) -> None:
    with pytest.raises((ProducerError, ConfigError)) as caught:
        AsyncTransactionMQProducer("group", **{"bootstrap_servers": "nowhere:9092", **given})
    assert text in str(caught.value)


def test_no_hook_and_no_messages_are_refused() -> None:
    producer = TransactionMQProducer("group", bootstrap_servers="nowhere:9092")
    with pytest.raises(ProducerError, match="7 is no hook; give a callable"):
        producer.register_end_transaction_hook(7)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"7 .*is no message"):
        producer.split(7)  # type: ignore[arg-type]


def test_an_engine_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"confluent-kafka.*pip install '/path/to/clone\[confluent\]'"):
        DefaultMQProducer("group", engine="confluent", bootstrap_servers="nowhere:9092")


def in_memory(timeout_ms: int) -> dict[str, Any]:
    """Options of librdkafka, for a Kafka in itself; each client has one of its own."""
    return {"test.mock.num.brokers": 1, "message.timeout.ms": timeout_ms}


def test_a_callback_that_raises_ends_no_later_send() -> None:
    engine = ConfluentEngine(in_memory, 10_000, str)

    def fail(_: object) -> None:
        raise SystemExit(3)

    first = engine.send("orders", 0, RECORD, 10_000)
    first.add_done_callback(fail)
    assert first.result(20)
    assert engine.send("orders", 0, RECORD, 10_000).result(20)
    engine.close(5)


@pytest.mark.parametrize("is_closed", [False, True], ids=["replaced", "closed"])
def test_a_send_has_its_outcome_when_its_client_ends_before_it_has_the_record(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = threading.Event()

    class Slow(Producer):
        def produce(self, *args: Any, **named: Any) -> None:
            chosen.set()
            time.sleep(0.5)
            super().produce(*args, **named)

    monkeypatch.setattr(confluent, "Producer", Slow)
    engine = ConfluentEngine(in_memory, 10_000, str)
    with ThreadPoolExecutor(1) as beside:
        sending = beside.submit(engine.send, "orders", 0, RECORD, 10_000)
        assert chosen.wait(20)
        engine.close(10) if is_closed else engine.send("orders", 0, RECORD, 20_000)
        assert sending.result().result(20)
    engine.close(10)
    with pytest.raises(FailedSendError, match="is shut down"):
        engine.send("orders", 0, RECORD, 10_000)


def test_a_flush_and_a_close_of_librdkafka_wait_for_clients_that_were_replaced() -> None:
    def slow_at_first(timeout_ms: int) -> dict[str, Any]:
        return {**in_memory(timeout_ms), "test.mock.broker.rtt": 200 if timeout_ms == 10_000 else 0}

    for end in (ConfluentEngine.flush, ConfluentEngine.close):
        engine = ConfluentEngine(slow_at_first, 10_000, str)
        slow, quick = (engine.send("orders", 0, RECORD, timeout_ms) for timeout_ms in (10_000, 20_000))
        assert quick.result(20)
        assert not engine.flush(0.1)
        assert end(engine, 20) is not False
        assert slow.done()
        assert slow.result()
        engine.close(5)


def test_a_flush_of_librdkafka_does_not_wait_for_what_is_sent_meanwhile() -> None:
    """By another producer that shares the connection, for example."""
    engine = ConfluentEngine(lambda ms: {**in_memory(ms), "test.mock.broker.rtt": 300}, 10_000, str)
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.01):
            engine.send("orders", 0, RECORD, 10_000)

    with ThreadPoolExecutor(1) as beside:
        beside.submit(send)
        before = engine.send("orders", 0, RECORD, 10_000)
        is_flushed = engine.flush(8)
        is_over.set()
    assert is_flushed
    assert before.done()
    engine.close(20)


class HeldClient:
    """A client of kafka-python whose record is acknowledged or given up when the test says so."""

    def __init__(self) -> None:
        self.has_outcome = threading.Event()
        self._sender = SimpleNamespace(force_close=self.has_outcome.set, join=lambda _: None)

    def flush(self, timeout: float) -> None:
        if not self.has_outcome.wait(timeout):
            raise KafkaTimeoutError

    def close(self, timeout: float) -> None:
        self.flush(timeout)


def test_a_flush_and_a_close_of_kafka_python_wait_for_clients_that_were_replaced() -> None:
    for is_given_up in (False, True):
        old, new = HeldClient(), HeldClient()
        new.has_outcome.set()
        clients = iter((old, new))
        engine = KafkaPythonEngine(lambda *_, made=clients: next(made), 1_000, str)
        engine._current(2_000, time.monotonic() + 20)  # a longer time-out, so it needs a new client
        assert not engine.flush(0.1)
        if not is_given_up:
            threading.Timer(0.2, old.has_outcome.set).start()
            assert engine.flush(20)
        engine.close(0.1)
        assert old.has_outcome.is_set()


def test_the_settings_are_read_again_after_any_error_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def crashed(**_: object) -> None:
        tries.append(None)
        msg = "the loop has crashed"
        raise RuntimeError(msg)

    monkeypatch.setattr(connection, "KafkaConsumer", crashed)
    with pytest.raises(ProducerError, match="cannot read the Kafka topic settings: the loop has crashed"):
        SettingsReader({}, "settings", str, bool).start(1_500)
    assert len(tries) > 1


def test_without_a_broker_the_start_fails_without_the_clients_traceback(caplog: pytest.LogCaptureFixture) -> None:
    producer = DefaultMQProducer("group", bootstrap_servers="127.0.0.1:1", start_timeout=0.4)
    with (
        caplog.at_level(logging.DEBUG, "commitlake"),
        pytest.raises(ProducerError, match=r"cannot reach Kafka at 127\.0\.0\.1:1: .*Unable to bootstrap") as caught,
    ):
        producer.start()
    assert caught.value.__suppress_context__
    assert any(record.exc_info for record in caplog.records if record.name.startswith("commitlake"))


def test_a_time_out_of_0_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def send(_link: object, _topic: str, _queue: object, _record: object, timeout_ms: int, *_: object) -> Position:
        waited.append(timeout_ms)
        return Position(0, 0)

    monkeypatch.setattr(KafkaLink, "settings", SETTINGS)
    monkeypatch.setattr(KafkaLink, "send", send)
    producer = DefaultMQProducer("group", bootstrap_servers="nowhere:9092")
    given_ones: list[Any] = [0, "0s", timedelta(0), 7, None]
    for timeout in given_ones:
        producer.send(Message("orders", b""), timeout=timeout)
    producer.send([Message("orders", b"")], timeout=0)
    assert waited == [0, 0, 0, 7_000, 3_000, 0]
