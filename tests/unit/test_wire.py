"""Every Kafka record against the test vectors that docs/contract.md shows; settings; what is not sent; header texts.

What landing and the coordinator in memory refuse of the rest: tests/spark/test_landing_records.py.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlake.errors import RecordError
from commitlake.protocol import delay, topic_names, wire
from commitlake.protocol.delay import Delay
from commitlake.protocol.encoding import Position
from commitlake.protocol.postgresql import Xact, answer_of, judged, xact, xact_of
from commitlake.tables import TABLES, TableName, topic_table
from commitlake.tables.names import CHECKPOINT_INTERVALS
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


LEVELS = [delay.level_ms(level) for level in ("1s", "5s", "10s", "2h")]
DAY = 86_400_000
STORED = 1_767_225_600_000


def parse(**headers: str) -> Delay | None:
    return delay.parse(headers, LEVELS, 40 * DAY, STORED)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"DELAY": ""}, None),
        ({"DELAY": "1"}, Delay(1_000, None)),
        ({"DELAY": "+3"}, Delay(10_000, None)),
        ({"DELAY": "0"}, None),
        ({"DELAY": "-1"}, None),
        ({"TIMER_DELAY_SEC": "10800"}, Delay(10_800_000, None)),
        ({"TIMER_DELAY_MS": "1"}, Delay(1, None)),
        ({"TIMER_DELAY_MS": "0"}, Delay(0, None)),
        ({"TIMER_DELAY_MS": "-1"}, None),
        ({"TIMER_DELIVER_MS": str(STORED + 5)}, Delay(None, STORED + 5)),
    ],
)
def test_each_header_alone(headers: dict[str, str], expected: Delay | None) -> None:
    assert parse(**headers) == expected


def test_a_level_beats_timers_and_the_first_timer_from_0_up_counts() -> None:
    timers = {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "TIMER_DELIVER_MS": "4"}
    assert parse(DELAY="2", **timers) == Delay(5_000, None)
    assert parse(DELAY="0", **timers) == Delay(2_000, None)
    assert parse(**{**timers, "TIMER_DELAY_SEC": "-1"}) == Delay(3, None)
    assert parse(**{**timers, "TIMER_DELAY_SEC": "-1", "TIMER_DELAY_MS": "-9"}) == Delay(None, 4)


@pytest.mark.parametrize("level", ["5", "999", "9" * 30])
def test_a_level_above_the_last_is_the_last(level: str) -> None:
    assert parse(DELAY=level) == Delay(7_200_000, None)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["1.5", "soon", " 1", "1 ", "0x1", "1e3", "--1", "+", "٣"])
def test_what_is_not_a_whole_number_is_bad_delay_beside_a_level_too(name: str, text: str) -> None:
    with pytest.raises(RecordError) as error:
        parse(**{"DELAY": "1", name: text})
    assert error.value.reason == "BAD_DELAY"


@pytest.mark.parametrize(
    "headers",
    [
        {"TIMER_DELAY_SEC": str(40 * DAY // 1_000 + 1)},
        {"TIMER_DELAY_MS": str(40 * DAY + 1)},
        {"TIMER_DELIVER_MS": str(STORED + 40 * DAY + 1)},
        {"TIMER_DELAY_SEC": "9" * 30},
        {"TIMER_DELIVER_MS": "9" * 5_000},
    ],
)
def test_one_ms_above_delay_max_is_too_long(headers: dict[str, str]) -> None:
    with pytest.raises(RecordError) as error:
        parse(**headers)
    assert error.value.reason == "DELAY_TOO_LONG"


def test_40_days_are_exact_to_the_millisecond_and_above_32_bits() -> None:
    found = parse(TIMER_DELAY_MS=str(40 * DAY))
    assert found is not None
    assert found.due(STORED) == STORED + 3_456_000_000


def test_an_absolute_time_in_the_past_is_due_then() -> None:
    found = parse(TIMER_DELIVER_MS="1")
    assert found is not None
    assert found.due(STORED) == 1


def test_a_delay_that_does_not_count_may_be_too_long() -> None:
    assert parse(DELAY="1", TIMER_DELAY_SEC="9" * 18) == Delay(1_000, None)


@pytest.mark.parametrize("topic", ["a", "Order_1-x", "%RETRY%group", "x" * 127, "RMQ_SYS", "TBW102x"])
def test_letters_digits_percent_underscore_and_dash_make_a_topic(topic: str) -> None:
    topic_names.check_name(topic)


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_",
        "SCHEDULE_TOPIC_XXXX",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_a_system_name_is_illegal(topic: str) -> None:
    with pytest.raises(RecordError, match="system") as error:
        topic_names.check_name(topic)
    assert error.value.reason == "ILLEGAL_TOPIC"


def test_allowed_topics_are_shell_patterns_whose_case_counts() -> None:
    assert topic_names.is_allowed("orders-eu", ["points", "orders-*"])
    assert not topic_names.is_allowed("Orders-eu", ["points", "orders-*"])
    assert topic_names.is_allowed("o1", ["o[0-9]"])


@pytest.mark.parametrize(("topic", "fits"), [("a", True), ("c", False)])
def test_a_new_topic_is_one_too_many_when_topics_max_are_known(topic: str, fits: bool) -> None:
    if fits:
        topic_names.check_admitted(topic, ["*"], {"a", "b"}, 2)
    else:
        with pytest.raises(RecordError) as error:
            topic_names.check_admitted(topic, ["*"], {"a", "b"}, 2)
        assert error.value.reason == "TOPIC_NOT_ALLOWED"


def test_a_percent_is_a_tilde_on_disk() -> None:
    assert topic_names.path_name("%RETRY%g") == "~RETRY~g"
    assert topic_names.from_path_name("~RETRY~g") == "%RETRY%g"


@pytest.mark.parametrize("topic", ["_samples", "_", "__HIVE__", "_%_", "topic_x", "%_samples", "%5F"])
def test_a_directory_that_would_be_hidden_has_a_name_of_its_own(topic: str) -> None:
    """Delta takes none called `_samples` for a table: a message to it ended the coordinator, and each start."""
    name = topic_names.path_name(topic)
    assert not name.startswith(("_", "."))
    assert topic_names.from_path_name(name) == topic
    assert (topic_names.older_path_name(topic) is None) == (topic[0] != "_" or topic == "_samples")


def test_a_twin_differs_in_case_only() -> None:
    assert topic_names.has_twin("Orders", {"orders", "points"})
    assert not topic_names.has_twin("orders", {"orders", "order"})


def test_no_two_fixed_tables_write_their_checkpoints_at_once() -> None:
    assert len({TableName(name).layout.checkpoint_interval for name in TABLES}) == len(TABLES)


def test_tables_of_topics_write_their_checkpoints_in_different_rounds() -> None:
    intervals = Counter(topic_table(f"topic{number}").layout.checkpoint_interval for number in range(100))
    assert set(intervals) <= set(CHECKPOINT_INTERVALS)
    assert max(intervals.values()) <= 12
    assert topic_table("orders").layout.properties()["delta.checkpointInterval"] in map(str, CHECKPOINT_INTERVALS)


def test_intervals_of_checkpoints_meet_after_a_thousand_commits() -> None:
    assert min(math.lcm(*pair) for pair in itertools.combinations(CHECKPOINT_INTERVALS, 2)) > 1_000


ASKED = Xact("7391", 26, 745)


def test_a_half_message_names_a_transaction_of_a_cluster_and_a_timeline() -> None:
    taken = xact("-7391", "0000001A", "4294967300")
    assert str(taken) == "-7391/26/4294967300"
    assert xact_of(str(taken)) == taken


@pytest.mark.parametrize(
    "text",
    ["", "745", "7391/26", "7391/26/745/1", "7391/1A/745", " 7391/26/745", "7391/26/745\n", "7391/26/-745", "7391/26/٣",
     "7391/26/2", "7391/26/9223372036854775808", "7391/26/1','2", "x" * 100_000],
)  # fmt: skip
def test_what_is_no_transaction_is_told(text: str) -> None:
    with pytest.raises(RecordError, match=r"postgresql.transaction: .* is not allowed; allowed is SYSTEM/TIMELINE/XID"):
        xact_of(text)


@pytest.mark.parametrize(
    ("row", "decision", "reason"),
    [
        (("7391", "0000001A", "745", "committed"), "COMMIT", "committed"),
        (("7391", "0000001A", "745", "aborted"), "ROLLBACK", "aborted"),
        (("7391", "0000001A", "745", "in progress"), None, "in progress"),
        (("7391", "0000001A", "745", None), None, "no longer knows it"),
        (("7391", None, "745", None), None, "a replica"),
        (
            ("7391", "0000001B", "745", "committed"),
            None,
            "another timeline, by a restore or a failover: 7391 timeline 27",
        ),
        (("7392", "0000001A", "745", "aborted"), None, "another cluster: 7392 timeline 26"),
    ],
)
def test_only_the_cluster_and_the_timeline_of_a_transaction_decide_it(
    row: tuple[str, str | None, str, str | None], decision: str | None, reason: str
) -> None:
    found, told = judged(ASKED, answer_of(*row))
    assert found == decision
    assert reason in told
