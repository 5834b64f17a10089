"""Every Kafka record against the test vectors that docs/contract.md shows; settings; what is not sent.

What landing and the coordinator in memory refuse of the rest: tests/spark/test_landing_records.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlake.errors import RecordError
from commitlake.protocol import wire
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
    for name in ("delay_levels", "topics_allowed", "topics"):
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


def test_settings_of_a_newer_version_are_read_and_of_an_older_one_refused() -> None:
    vector = json.loads((VECTORS[0].parent / "settings.json").read_text())
    content = json.loads(vector["value"])
    assert wire.decode_settings(json.dumps({**content, "later": 1}).encode()).queues == content["queues"]
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
