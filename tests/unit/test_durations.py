"""Texts with a unit, numbers of seconds and `timedelta`, wherever a duration is given."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

import commitlake
from commitlake.clients.consumer.arguments import seconds as consumer_seconds
from commitlake.clients.delta.delta_transaction import deadline_ms
from commitlake.clients.producer.plain import milliseconds
from commitlake.config import Config, from_mapping, load, of
from commitlake.coordinator.resolving.rules import rule_of
from commitlake.errors import CommitLakeError, ConfigError, MQClientException
from commitlake.protocol.durations import duration_ms, duration_text, seconds
from commitlake.tools.cli.tx import length

KAFKA = {"kafka.bootstrap_servers": "127.0.0.1:9092"}
SAME: list[Any] = ["15s", 15, 15.0, timedelta(seconds=15), "15000ms"]


@pytest.mark.parametrize("text", ["0s", "1ms", "1500ms", "90s", "5m", "25h", "30d"])
def test_a_length_is_told_in_the_largest_unit_that_divides_it(text: str) -> None:
    ms = duration_ms(text)
    assert ms is not None and duration_text(ms) == text


@pytest.mark.parametrize("given", SAME)
def test_the_same_duration_however_it_is_given(given: Any) -> None:
    conf = from_mapping({"transaction": {"timeout": given}, "topics.dedup": {"orders": {"window": given}}, **KAFKA})
    assert conf.transaction.timeout_ms == 15_000
    assert conf.topics.dedup["orders"].window_ms == 15_000
    assert rule_of("g", {"table": "delta-log", "every": given}, 6_000).every_ms == 15_000
    assert from_mapping({"checks": {"g": {"table": "delta-log", "every": given}}}).checks["g"]["every"] == given
    assert deadline_ms("sink", conf, given) == 15_000
    assert (consumer_seconds("poll", given), seconds("timeout", given)) == (15, 15)


def test_a_text_needs_its_unit_wherever_it_stands() -> None:
    for sets, environ in ((["transaction.timeout=15"], {}), ([], {"COMMITLAKE__TRANSACTION__TIMEOUT": "0.5"})):
        with pytest.raises(ConfigError, match="allowed is a whole number with a unit"):
            load(None, sets, environ)
    with pytest.raises(typer.BadParameter, match="a whole number with a unit"):
        length("15")
    assert length("1h") == 3_600_000


@pytest.mark.parametrize("given", [15_000, "15s", timedelta(seconds=15)])
def test_a_number_of_a_producer_is_one_of_ms_as_in_rocketmq(given: Any) -> None:
    assert milliseconds("timeout", given) == 15_000
    options: Any = {"bootstrap_servers": "127.0.0.1:9092"}
    producer = commitlake.TransactionMQProducer("g", send_msg_timeout=given, start_timeout=given, **options)
    assert producer.send_msg_timeout == 15_000


WRONG: list[Any] = ["soon", "15", -1, "-1s", True, None, [], float("nan"), float("inf"), timedelta(-1), "1.5s", b"1s"]


@pytest.mark.parametrize("given", WRONG, ids=repr)
def test_what_is_no_duration_is_told_with_what_is_allowed(given: Any) -> None:
    assert duration_ms(given) is None
    with pytest.raises(CommitLakeError, match=r"poll: .* is not allowed; give a text such as 500ms"):
        consumer_seconds("poll", given)
    with pytest.raises(ConfigError, match=r"timeout: .* is not allowed; give a text such as 500ms"):
        seconds("timeout", given)
    with pytest.raises(MQClientException, match=r"timeout: .* is not allowed; give ms from 0"):
        milliseconds("timeout", given)
    with pytest.raises(ConfigError, match=r"sink: deadline .* is not allowed; give a time such as '1h'$"):
        deadline_ms("sink", from_mapping(KAFKA), given)
    with pytest.raises(ConfigError, match=r"transaction.timeout: .* allowed is a whole number with a unit"):
        from_mapping({"transaction.timeout": given})


def test_a_duration_longer_than_any_clock_is_refused() -> None:
    with pytest.raises(CommitLakeError, match=r"poll: .* is not allowed"):
        consumer_seconds("poll", 10**400)


def test_a_time_out_longer_than_kafkas_clients_can_count_is_refused() -> None:
    assert milliseconds("timeout", "20d") < 2**31
    with pytest.raises(MQClientException, match=r"timeout: '21d' is not allowed; give ms from 0 to '20d'"):
        milliseconds("timeout", "21d")
    with pytest.raises(MQClientException, match=r"timeout: 10+ is not allowed"):
        milliseconds("timeout", 10**400)


def test_a_delay_level_has_a_unit_as_producers_in_other_languages_read_it() -> None:
    for level in ("", "5", "s", "1.5s", "-1s", "1w"):
        with pytest.raises(ConfigError, match=r"delay.levels: .* a list of durations"):
            from_mapping({"delay.levels": ["1s", level]})


def test_a_consumer_takes_all_of_them(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "topics" / "orders"), pa.table({"queue_id": pa.array([], pa.int32())}))
    given: dict[str, Any] = {"group": "g", "poll": 1, "lease": timedelta(seconds=15)}
    assert commitlake.consume({"warehouse": str(tmp_path)}, "orders", **given).group == "g"


def test_a_path_is_a_configuration_and_a_place(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("transaction:\n  timeout: 15s\n")
    assert of(file).transaction.timeout_ms == load(file).transaction.timeout_ms == 15_000
    assert from_mapping({"warehouse": tmp_path, "receipts": tmp_path / "r"}).warehouse == str(tmp_path)


@pytest.mark.parametrize("given", [5, None, ["a.yaml"], b"\xff"])
def test_what_is_no_configuration_is_told(given: Any) -> None:
    with pytest.raises(ConfigError):
        of(given)


def test_a_configuration_stays_as_it_is() -> None:
    conf = from_mapping({})
    assert isinstance(conf, Config)
    assert of(conf) is conf
