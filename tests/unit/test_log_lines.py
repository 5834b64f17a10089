"""Counters, metrics, and lines of the log: for people and programs, and bounded whatever producers choose."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.cluster import free_port
from tests.support.polling import wait_for

from commitlake.config import from_mapping
from commitlake.coordinator.coordination import rejected_rows
from commitlake.coordinator.counters import Ages, Counters
from commitlake.coordinator.metrics import server
from commitlake.coordinator.metrics.collect import MetricNames, of_counters
from commitlake.coordinator.optional_services import standing_by
from commitlake.coordinator.round_log import RoundLog
from commitlake.errors import KafkaError, SetupError
from commitlake.protocol.states import LANDING_REASONS, Refusal
from commitlake.spark import log_lines, preflight, process


def record(message: str, **more: object) -> logging.LogRecord:
    given = {"name": "commitlake.landing", "levelname": "WARNING", "msg": message, "created": 1.5, "msecs": 500.0}
    return logging.makeLogRecord(given | more)


def test_a_json_line_is_one_object_whatever_the_message_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json")
    line = log_lines.formatter().format(record('a "quote"\nand \x1b[31mred', fields={"records": 3}))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "WARNING",
        "logger": "commitlake.landing",
        "message": 'a "quote"\nand \x1b[31mred',
        "records": 3,
    }
    assert line.isprintable()


def test_a_json_line_has_the_stack_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json")
    try:
        raise ValueError("lost")
    except ValueError:
        line = log_lines.formatter().format(record("it failed", exc_info=sys.exc_info()))
    assert "ValueError: lost" in json.loads(line)["stack"]


def test_words_have_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log_lines.FORMAT, raising=False)
    assert log_lines.formatter().format(record("\x1b[31mred")).endswith("WARNING commitlake.landing: \\x1b[31mred")


@pytest.mark.parametrize("is_json", [False, True], ids=["words", "json"])
def test_the_error_that_ends_a_process_has_the_format_of_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "json" if is_json else "text")
    with pytest.raises(SystemExit), process.short_errors():
        raise KafkaError("Kafka is away")
    told = capsys.readouterr().err
    assert (json.loads(told)["message"] if is_json else told[7:-1]) == "Kafka is away"


def test_a_format_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log_lines.FORMAT, "xml")
    with pytest.raises(SystemExit), process.short_errors():
        pass
    assert capsys.readouterr().err == "error: COMMITLAKE_LOG_FORMAT=xml is not allowed; set it to one of text, json\n"


@pytest.mark.parametrize(
    ("message", "is_told"),
    [
        ("Lost task 0.0 in stage 9.0 (TID 9) (here executor driver): TaskKilled (Stage cancelled: by Job 3)", False),
        ("Lost task 0.0 in stage 9.0 (TID 9) (here executor driver): java.io.IOException: No space left", True),
        ("Query landing [id = 1] terminated with error", False),
        ("Issue communicating with driver in heartbeater", False),
    ],
)  # fmt: skip
def test_a_clean_stop_tells_of_no_task_that_it_has_killed(message: str, is_told: bool) -> None:
    lines = (Path(log_lines.__file__).parent / "log4j2.properties").read_text().splitlines()
    (pattern,) = [line.partition(" = ")[2] for line in lines if line.startswith("appender.stderr.filter.ended.regex")]
    assert (re.fullmatch(pattern, message) is None) == is_told


def test_a_round_is_a_line_of_the_log_with_fields_for_programs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="commitlake")
    rounds = RoundLog(1_000)
    rounds.add(10, 0.5, 1.25)
    assert caplog.messages == ["round: 10 records, classified in 0.50 s, visible 1.25 s later"]
    line = json.loads(log_lines.JsonLines().format(caplog.records[0]))
    assert line.items() >= {"event": "round", "records": 10, "classify_s": 0.5, "write_s": 1.25}.items()
    assert rounds.count == 1


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(message.startswith("falling behind: ") for message in caplog.messages)


def test_three_rounds_in_a_row_that_are_too_long_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds = RoundLog(1_000)
    for took in (11.0, 11.0, 9.0, 11.0, 11.0):
        rounds.add(1, took, 0.0)
    assert warnings(caplog) == 0
    rounds.add(1, 5.0, 6.0)
    assert warnings(caplog) == 1
    rounds.add(1, 11.0, 0.0)
    assert warnings(caplog) == 1


def test_a_long_interval_allows_long_rounds_and_an_idle_look_ends_a_row(caplog: pytest.LogCaptureFixture) -> None:
    rounds = RoundLog(10_000)
    for _ in range(5):
        rounds.add(1, 40.0, 0.0)
    for _ in range(5):
        rounds.add(1, 60.0, 0.0)
        rounds.add(1, 60.0, 0.0)
        rounds.idle()
    assert warnings(caplog) == 0


CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"


def test_counts_are_added_by_labels_and_may_begin_at_0() -> None:
    counters = Counters()
    counters.add("rejected", {("BAD_OP",): 2})
    counters.add("rejected", {("BAD_OP",): 1, ("NULL_BODY",): 1})
    assert counters.of("rejected", [("BAD_OP",), ("BAD_BATCH",)]) == {
        ("BAD_OP",): 3,
        ("NULL_BODY",): 1,
        ("BAD_BATCH",): 0,
    }
    assert counters.of("answers", [()]) == {(): 0}


def test_ages_are_counted_up_to_each_bound() -> None:
    ages = Ages()
    ages.add([(0, 1), (89_998_500, 2)], until=90_000_000)
    ages.add([(1_000, 1), (1_001, 1)], until=1_000)
    assert ages.sums == ((2, 4, 4, 4, 4, 4, 4, 4, 4, 4), 5, 90_003.0)


def test_what_is_counted_are_counters_and_histograms_of_prometheus() -> None:
    class Collector:
        def collect(self) -> list[Metric]:
            return list(of_counters(counters))

    counters = Counters()
    counters.ended.add([(500, 1)], until=1_000)
    counters.normal.add([(500, 1)], until=1_000)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    families = {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}
    kinds = {name: each.type for name, each in families.items()}
    assert set(kinds.values()) == {"counter", "histogram"}
    assert {each.name for each in families["commitlake_ended"].samples} == {"commitlake_ended_total"}
    assert all(each.value == 0 for each in families["commitlake_rejected"].samples)
    assert {"_bucket", "_count", "_sum"} == {each.name[22:] for each in families["commitlake_end_seconds"].samples}
    late = {each.labels["source"]: each.value for each in families["commitlake_visible_late_seconds"].samples}
    assert late == {"half": 0, "messages": 0.5}, "the last sample of each is its sum"


def test_however_many_topics_there_are_few_have_a_name_and_keep_it() -> None:
    names = MetricNames()
    first = [names.label(f"topic{number}") for number in range(50)]
    assert first == [f"topic{number}" for number in range(50)]
    assert {names.label(f"more{number}") for number in range(1_000)} == {"_others"}
    assert names.label("topic7") == "topic7"


def test_every_reason_of_the_contract_is_a_series_from_the_start() -> None:
    listed = re.findall(r"^\d+\. `([A-Z_]+)`", CONTRACT.read_text(), re.MULTILINE)
    assert list(LANDING_REASONS) == listed


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])  # the last ones as on a machine without IPv4
def test_a_standby_is_well_and_one_without_the_port_goes_on_with_a_warning(
    caplog: pytest.LogCaptureFixture, host: str
) -> None:
    port, name = free_port(), f"[{host}]" if ":" in host else host
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    conf = from_mapping({"metrics.port": port, "metrics.host": host})
    preflight.check_coordinator(conf, is_shared=lambda: False)
    with standing_by(conf):
        assert urllib.request.urlopen(f"http://{name}:{port}/healthz", timeout=5).status == 200
        assert urllib.request.urlopen(f"http://{name}:{port}/metrics", timeout=5).read() == b""
        assert not caplog.text
        with pytest.raises(SetupError, match=f"metrics.port: cannot listen on {host}:{port}: Address already in use;"):
            preflight.check_coordinator(conf, is_shared=lambda: False)
        with standing_by(conf):
            assert f"no /healthz while standing by: metrics.port: cannot listen on {host}:{port}" in caplog.text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{name}:{port}/healthz", timeout=5)


def test_who_asks_nothing_or_goes_away_leaves_no_thread_and_no_stack(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As a port scan, a load balancer that resets connections, or a client whose machine has lost its power."""
    monkeypatch.setattr(server, "_REQUEST_S", 0.5)
    asked, goes_on = threading.Event(), threading.Event()

    def health() -> None:
        asked.set()
        goes_on.wait(30)

    before = threading.active_count()
    with server.serving("127.0.0.1", 0, tuple, health) as port, socket.create_connection(("127.0.0.1", port)) as silent:
        for request in (b"GET /healthz HTTP/1.1\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port)) as gone:
                gone.sendall(request)
                assert asked.wait(30)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        goes_on.set()
        wait_for(lambda: threading.active_count() == before + 1, 20)
        assert silent.recv(1) == b""
    assert (capfd.readouterr().err, caplog.text) == ("", "")


def test_each_refusal_of_an_op_has_words_of_its_own() -> None:
    assert set(rejected_rows._DETAILS) == set(Refusal)
    assert len(set(rejected_rows._DETAILS.values())) == len(Refusal)
