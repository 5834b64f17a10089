"""Whatever a program gives a message: a producer sends it as landing takes it, or refuses it, on every path alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.message_values import PROPERTIES, SETTINGS, TYPED, VALUES, bare, is_typed, plain, refusal, sent

from commitlake.clients.consumer.arguments import tags_of
from commitlake.errors import ConsumerError, RecordError
from commitlake.protocol import headers, wire
from commitlake.protocol.clock import now_ms
from commitlake.testing import landing
from commitlake.testing.codecs import Limits, unpack

OURS = {"ILLEGAL_MESSAGE_TAG"}
"""Reasons of refusals that are a producer's only: landing takes such records, of other clients."""


def landed(source: str, record: wire.Encoded) -> Any:
    return landing.read(source, record, Limits(SETTINGS, now_ms()))


def told(record: Any) -> dict[str, Any]:
    """What a landed record says; of a batch its first member."""
    found = {name: getattr(record, name) for name in ("topic", "queue_id", "sharding_key")}
    if record.batch is None:
        return found | {name: getattr(record, name) for name in ("body", "tags", "keys", "properties", "msg_id")}
    member = unpack(record, {})[0]
    own = dict(member.properties)
    tags, keys, msg_id = (own.pop(name, None) for name in (headers.TAGS, headers.KEYS, headers.UNIQ_KEY))
    return found | {"body": member.body, "tags": tags, "keys": keys, "msg_id": msg_id, "properties": own}


def meant(fields: dict[str, Any]) -> dict[str, Any]:
    """What a message of these fields must say."""
    found: dict[str, Any] = {
        "topic": "orders",
        "body": b"body",
        "queue_id": None,
        "sharding_key": None,
        "tags": None,
        "keys": None,
    }
    found |= {"properties": {}} | {name: plain(value) for name, value in fields.items()}
    for name in ("body", "sharding_key"):
        found[name] = found[name].encode() if isinstance(found[name], str) else found[name]
    return found | {"tags": found["tags"] or None, "keys": found["keys"] or None}


def of(values: list[Any]) -> st.SearchStrategy[Any]:
    """One of some values, of which not all have a hash."""
    return st.integers(0, len(values) - 1).map(lambda at: values[at])


ODD = of(VALUES) | st.text(max_size=5) | st.integers() | st.floats() | st.binary(max_size=5)
FIELDS = st.builds(
    lambda fields, more: fields | more,
    st.dictionaries(st.sampled_from(list(TYPED)), ODD, max_size=3),
    st.just({}) | st.fixed_dictionaries({"properties": of(PROPERTIES)}),
)


@pytest.mark.parametrize("path", ["message", "half", "part", "batch", "old batch"])
@given(fields=FIELDS)
def test_what_a_producer_accepts_lands_as_it_was_given(path: str, fields: dict[str, Any]) -> None:
    try:
        source, record = sent(path, fields)
    except RecordError:
        return  # never a TypeError or an AttributeError
    found, expected = told(landed(source, record)), meant(fields)
    msg_id = found.pop("msg_id")
    assert found == {name: expected[name] for name in found}
    assert expected.get("message_id") in (None, msg_id)


@pytest.mark.parametrize("source", ["messages", "half"])
@given(name=st.sampled_from(list(TYPED)), value=ODD)
def test_what_landing_refuses_or_takes_a_producer_does_too(source: str, name: str, value: Any) -> None:
    """Of values that a record has as they are."""
    assume(is_typed(name, value) and (source, name) != ("messages", "transaction_id"))
    reason = refusal(lambda: landed(source, bare(name, value)))
    found = refusal(lambda: sent("half" if source == "half" else "message", {name: value}))
    if found in OURS or (name == "deliver_at" and found == "BAD_DELAY"):
        assert reason is None
    else:
        assert found == reason


@given(st.text("ab|* \t\u00a0", max_size=6))
def test_a_tag_is_accepted_where_a_filter_can_select_it(tag: str) -> None:
    accepted = refusal(lambda: sent("message", {"tags": tag})) is None
    try:
        selected = tags_of(tag)
    except ConsumerError:
        selected = []
    assert accepted == (selected is None or tag in selected)
