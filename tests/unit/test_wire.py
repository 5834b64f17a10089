"""Every Kafka record against the test vectors that docs/contract.md shows, and what a decoder refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlake.errors import RecordError
from commitlake.protocol import headers, wire
from commitlake.protocol.encoding import Position
from commitlake.testing import codecs

VECTORS = sorted((Path(__file__).parents[1] / "vectors").glob("*.json"))


def made(vector: dict[str, Any]) -> Any:
    """The record that a vector's `record` and `fields` describe."""
    fields = dict(vector["fields"])
    for name in ("first_half", "half", "message"):
        if fields.get(name):
            fields[name] = Position(*fields[name])
    if "half_messages" in fields:
        fields["half_messages"] = tuple(Position(*place) for place in fields["half_messages"])
    for name in ("body", "sharding_key"):
        if fields.get(name) is not None:
            fields[name] = fields[name].encode()
    for name in ("delay_levels", "topics_allowed", "topics", "ruled_groups"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return getattr(wire, vector["record"])(**fields)


def encoded(record: Any) -> wire.Encoded:
    encoders: dict[type, Any] = {
        wire.HalfRecord: wire.encode_half,
        wire.MessageRecord: wire.encode_message,
        wire.OpRecord: wire.encode_op,
        wire.RecallRecord: wire.encode_recall,
        wire.CheckRecord: codecs.encode_check,
        wire.Settings: wire.encode_settings,
    }
    return wire.Encoded(*encoders[type(record)](record))


def decoded(topic: str, sent: wire.Encoded) -> Any:
    if topic in ("op", "admin"):
        return codecs.decode_op(sent.value, admin=topic == "admin")
    if topic == "check":
        return wire.decode_check(sent.value, sent.headers)
    if topic == "settings":
        return wire.decode_settings(sent.value)
    return {"half": codecs.decode_half, "messages": codecs.decode_message}[topic](*sent)


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_a_record_is_written_as_its_vector_says_and_read_back(path: Path) -> None:
    vector = json.loads(path.read_text())
    record = made(vector)
    sent = encoded(record)
    assert sent.key == (None if vector["key"] is None else vector["key"].encode())
    assert sent.value == vector["value"].encode()
    assert dict(sent.headers) == {name: value.encode() for name, value in vector["headers"].items()}
    assert decoded(vector["topic"], sent) == record


def test_there_is_a_vector_for_every_record_of_every_topic() -> None:
    assert {json.loads(path.read_text())["topic"] for path in VECTORS} == {
        "half", "op", "messages", "admin", "check", "settings",
    }  # fmt: skip
    assert len(VECTORS) >= 13


HALF = {headers.REAL_TOPIC: b"orders", headers.UNIQ_KEY: b"id", headers.PGROUP: b"group"}


def half(without: object = "", **more: bytes) -> wire.HalfRecord:
    present = {name: value for name, value in {**HALF, **more}.items() if name != without}
    return codecs.decode_half(None, b"x", list(present.items()))


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (headers.REAL_TOPIC, "MISSING_REAL_TOPIC"),
        (headers.UNIQ_KEY, "MISSING_UNIQ_KEY"),
        (headers.PGROUP, "MISSING_PRODUCER_GROUP"),
    ],
)
def test_a_half_message_with_a_missing_or_too_long_header_is_refused(header: str, reason: str) -> None:
    for value in (b"", b"x" * 256):
        with pytest.raises(RecordError) as error:
            half(**{header: value})
        assert error.value.reason == reason
    with pytest.raises(RecordError) as error:
        half(without=header)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [
        (headers.REAL_QID, b"-1", "BAD_QUEUE_ID"),
        (headers.REAL_QID, b"one", "BAD_QUEUE_ID"),
        (headers.BATCH, b"2", "BAD_BATCH"),
        (headers.FIRST_HALF, b"0:7", "BAD_FIRST_HALF"),
        (headers.FIRST_HALF, b"7", "BAD_FIRST_HALF"),
    ],
)
def test_a_malformed_header_of_a_half_message_is_refused(header: str, value: bytes, reason: str) -> None:
    with pytest.raises(RecordError) as error:
        half(**{header: value})
    assert error.value.reason == reason


def test_a_record_without_a_value_has_no_body_but_an_empty_value_is_one() -> None:
    with pytest.raises(RecordError) as error:
        codecs.decode_half(None, None, list(HALF.items()))
    assert error.value.reason == "NULL_BODY"
    assert codecs.decode_half(None, b"", list(HALF.items())).body == b""


def test_a_transaction_id_defaults_to_the_message_id() -> None:
    assert half().transaction_id == "id"


@pytest.mark.parametrize("immunity", [b"-1", b"1.5", b"soon", b""])
def test_an_immunity_that_is_not_a_whole_number_from_0_up_is_as_absent(immunity: bytes) -> None:
    assert half(**{headers.CHECK_IMMUNITY: immunity}).check_immunity_s is None


def test_the_coordinators_headers_are_dropped_others_are_user_properties() -> None:
    record = half(**{headers.CHECK_TIMES: b"15", headers.CHECK_ID: b"0-0-0-1", "color": b"red"})
    assert record.properties == {"color": "red"}


def test_of_duplicate_headers_the_last_wins() -> None:
    record = codecs.decode_half(None, b"", [*HALF.items(), ("a", b"1"), ("a", b"2")])
    assert record.properties == {"a": "2"}


OP = {
    "transaction_id": "t",
    "producer_group": "g",
    "decision": "COMMIT",
    "half_messages": [{"queue": 0, "offset": 1}],
}


def test_an_op_may_leave_from_check_and_remark_out() -> None:
    op = codecs.decode_op(json.dumps(OP).encode())
    assert op == wire.OpRecord(
        transaction_id="t", producer_group="g", decision="COMMIT", half_messages=(Position(0, 1),)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "MAYBE"},
        {"decision": None},
        {"decision": "RESUME"},
        {"decision": ["COMMIT"]},
        {"transaction_id": ""},
        {"transaction_id": 7},
        {"producer_group": None},
        {"half_messages": []},
        {"half_messages": None},
        {"half_messages": {"queue": 0, "offset": 1}},
        {"half_messages": [{"queue": 0}]},
        {"half_messages": [{"queue": "0", "offset": 1}]},
        {"half_messages": [{"queue": 0, "offset": 1.0}]},
        {"half_messages": [{"queue": 0, "offset": True}]},
        {"half_messages": [{"queue": 0, "offset": -1}]},
        {"half_messages": [{"queue": 0, "offset": 2**63}]},
        {"half_messages": [{"queue": 0, "offset": 1}] * 1_001},
        {"from_check": "yes"},
        {"remark": 1},
        {"decision": "RECALL"},
        {"decision": "RECALL", "message_id": "m", "topic": "t", "messages": [{"queue": 0, "offset": 1}] * 2},
    ],
)
def test_a_malformed_op_is_bad_op(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError) as error:
        codecs.decode_op(json.dumps({**OP, **change}).encode())
    assert error.value.reason == "BAD_OP"


@pytest.mark.parametrize("value", [None, b"", b"COMMIT", b"\xff", b"[]", b"{} {}", b"[" * 100_000])
def test_an_op_that_is_not_one_json_object_is_bad_op(value: bytes | None) -> None:
    with pytest.raises(RecordError) as error:
        codecs.decode_op(value)
    assert error.value.reason == "BAD_OP"


def test_admin_may_resume_without_a_group_and_may_not_recall() -> None:
    value = {**OP, "decision": "RESUME", "producer_group": None}
    op = codecs.decode_op(json.dumps(value).encode(), admin=True)
    assert isinstance(op, wire.OpRecord)
    assert (op.decision, op.producer_group) == ("RESUME", None)
    recall = wire.encode_recall(wire.RecallRecord(msg_id="m", topic="t", message=Position(0, 1)))
    with pytest.raises(RecordError):
        codecs.decode_op(recall.value, admin=True)


def test_settings_of_a_newer_version_are_read_and_of_an_older_one_refused() -> None:
    vector = json.loads((VECTORS[0].parent / "settings.json").read_text())
    content = json.loads(vector["value"])
    assert wire.decode_settings(json.dumps({**content, "later": 1}).encode()).queues == content["queues"]
    assert wire.decode_settings(json.dumps({**content, "ruled_groups": None}).encode()).ruled_groups is None
    del content["batch_head"]  # a coordinator of contract version 4
    assert wire.decode_settings(json.dumps(content).encode()).batch_head is False
    del content["check_topics"]  # and 3
    assert wire.decode_settings(json.dumps(content).encode()).check_topics == ()
    del content["queues"]
    with pytest.raises(RecordError, match="queues"):
        wire.decode_settings(json.dumps(content).encode())


@pytest.mark.parametrize(
    "wrong", [{"topics_max": None}, {"topics_allowed": 0}, {"topics": ["a", 1]}, {"queues": True}, {"batch_head": 1}]
)
def test_settings_of_another_type_are_refused(wrong: dict[str, object]) -> None:
    """They would fail each send with an error of Python's."""
    content = json.loads(json.loads((VECTORS[0].parent / "settings.json").read_text())["value"])
    (name,) = wrong
    with pytest.raises(RecordError, match=f"the settings record's {name} is "):
        wire.decode_settings(json.dumps({**content, **wrong}).encode())


def test_text_that_is_no_utf8_is_refused_before_it_is_sent() -> None:
    record = wire.MessageRecord(topic="t", msg_id="m", body=b"", tags="\ud800")
    with pytest.raises(RecordError, match="UTF-8"):
        wire.encode_message(record)
    with pytest.raises(RecordError, match="UTF-8"):
        wire.encode_message(replace(record, tags=None, properties={"\ud800": "a"}))


def test_a_property_with_a_nul_in_its_name_is_refused_before_it_is_sent() -> None:
    """To librdkafka the name ends there, so the half message would be one of another transaction."""
    record = wire.MessageRecord(topic="t", msg_id="m", body=b"", properties={"FIRST_HALF\0": "0-1"})
    with pytest.raises(RecordError, match=r"FIRST_HALF.* NUL in its name"):
        wire.encode_message(record)
