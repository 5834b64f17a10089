"""The configuration: defaults, files, what is refused; texts with a unit wherever a duration is given."""

from __future__ import annotations

import json
import pickle
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer
import yaml
from deltalake import write_deltalake
from tests.support.message_values import Name, Number

import commitlake
from commitlake import config
from commitlake.clients.consumer.arguments import seconds as consumer_seconds
from commitlake.clients.delta.delta_transaction import deadline_ms
from commitlake.clients.producer.plain import milliseconds
from commitlake.config import Config, from_mapping, of
from commitlake.config.config import KEYS
from commitlake.config.sections import masked_options
from commitlake.coordinator.resolving.rules import rule_of
from commitlake.errors import ArgumentError, CommitLakeError, ConfigError
from commitlake.protocol.durations import duration_ms, duration_text, seconds
from commitlake.protocol.kafka_topics import check_topic
from commitlake.tools.cli.tx import length

ROOT = Path(__file__).parents[2]


def load(*overrides: str, path: Path | None = None, environ: dict[str, str] | None = None) -> config.Config:
    return config.load(str(path) if path else None, overrides, environ or {})


def test_the_defaults_are_those_of_the_contract() -> None:
    found = load()
    assert found.kafka.is_embedded
    assert (found.kafka.topic_prefix, found.kafka.queues, found.kafka.options) == ("commitlake.", 4, {})
    assert found.trigger_interval_ms == 1_000
    assert found.transaction == config.TransactionConfig(
        6_000, 30_000, 300_000, 15, "wait", 259_200_000, 600_000, False
    )
    assert found.topics == config.TopicsConfig(("*",), 1_000, 64, {}, {}, {}, {})
    assert (found.delay.levels_ms[:4], found.delay.levels_ms[-1]) == ((1_000, 5_000, 10_000, 30_000), 7_200_000)
    assert len(found.delay.levels_ms) == 18
    assert found.delay.max_ms == 40 * 86_400_000
    assert found.max_message_size == 4 * 1024 * 1024
    assert found.warehouse == str(Path("warehouse").absolute())


@pytest.mark.parametrize("given", ["{orders: {window: 30d}}", {"orders": {"by": "keys", "window": "30d"}}])
def test_a_topic_may_show_a_name_once(given: object) -> None:
    found = config.from_mapping({"topics.dedup": given}).topics.dedup
    assert found == {"orders": ("keys", 30 * 86_400_000)}
    assert config.from_mapping({"topics.dedup": str(found)}).topics.dedup == found


def test_a_topic_whose_name_yaml_takes_for_a_number_shows_a_name_once_too() -> None:
    assert list(load("topics.dedup={17: {window: 30d}}").topics.dedup) == ["17"]


@pytest.mark.parametrize(
    "given",
    [
        "orders",
        {"orders": "30d"},
        {"orders": {"by": "keys"}},
        {"orders": {"window": "0s"}},
        {"a.b": {"window": "1d"}},
        {"orders": {"by": "body", "window": "1d"}},
        {"orders": {"window": "1d", "than": 1}},
    ],
)
def test_what_names_are_and_how_long_they_are_held_must_be_told(given: object) -> None:
    with pytest.raises(ConfigError, match="by is keys or message_id, window 1s or more"):
        config.from_mapping({"topics.dedup": given})


@pytest.mark.parametrize("given", ["{default: none, clicks: 30d}", {"default": None, "clicks": "30d"}])
def test_rows_of_a_topic_may_go_by_age(given: object) -> None:
    found = config.from_mapping({"topics.retention": given}).topics
    assert (found.retention_of("clicks"), found.retention_of("orders")) == (30 * 86_400_000, 0)
    assert str(found.retention) == "{'default': none, 'clicks': 30d}"
    assert config.from_mapping({"topics.retention": str(found.retention)}).topics == found
    assert config.from_mapping({"topics.retention": {"default": "7d"}}).topics.retention_of("orders") == 7 * 86_400_000


@pytest.mark.parametrize("given", ["30d", {"clicks": "59m"}, {"clicks": 0}, {"a.b": "1d"}, {"clicks": {"age": "1d"}}])
def test_the_age_of_rows_is_an_hour_or_more(given: object) -> None:
    with pytest.raises(ConfigError, match=r"ages from 1h up, such as \{default: none, clicks: 30d\}"):
        config.from_mapping({"topics.retention": given})


def test_rows_do_not_go_before_the_names_that_they_hold() -> None:
    dedup = {"topics.dedup": {"orders": {"window": "30d"}}}
    config.from_mapping({**dedup, "topics.retention": {"default": "31d", "clicks": "1d"}})
    for ages in ({"default": "30d"}, {"orders": "30d", "default": "none"}):
        with pytest.raises(
            ConfigError, match=r"30d for orders must be longer than the window of topics.dedup, .*window: 30d"
        ):
            config.from_mapping({**dedup, "topics.retention": ages})


def test_two_warehouses_may_share_a_directory_of_checkpoints() -> None:
    one, other = load("warehouse=/a", "checkpoints=/c/"), load("warehouse=/b", "checkpoints=/c/")
    assert one.scratch.startswith("/c/")
    assert one.scratch != other.scratch
    assert one.scratch == load("warehouse=/a", "checkpoints=/c").scratch


def test_precedence_is_set_then_environment_then_file_then_default(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("transaction: {timeout: 1s, check_interval: 1s, check_max: 1}\n")
    environ = {"COMMITLAKE__TRANSACTION__TIMEOUT": "2s", "COMMITLAKE__TRANSACTION__CHECK_INTERVAL": "2s"}
    found = load("transaction.timeout=3s", path=file, environ=environ).transaction
    assert (found.timeout_ms, found.check_interval_ms, found.check_max) == (3_000, 2_000, 1)
    assert found.retention_ms == 259_200_000


@pytest.mark.parametrize("name", ["local", "hdfs", "s3", "abfs", "databricks"])
def test_the_configurations_that_ship_are_good(name: str) -> None:
    assert load(path=ROOT / "conf" / f"{name}.yaml").kafka.topic("half") == "commitlake.half"


ODD = [("50%25", "%25"), ("a%20b", "%20"), ("a\\b", "\\"), ("a[x]", "["), ("a^b", "^"), ("a|b", "|"), ("a\nb", "\n")]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("transaction.timout=6s", "did you mean transaction.timeout"),
        ("transaction.timeout=6x", "'6x' is not allowed; allowed is a whole number with a unit"),
        ("transaction.timeout=6", "'6' is not allowed; allowed is a whole number with a unit"),
        ("transaction.timeout=1:30", "'1:30' is not allowed"),
        ("transaction.timeout=-6s", "'-6s' is not allowed"),
        ("transaction.check_interval=0s", "from 1ms"),
        ("transaction.check_max=1.5", "allowed is a whole number from 0 to 30000"),
        ("transaction.reject=perhaps", "allowed is true or false"),
        ("transaction.unanswered=forget", "'forget' is not allowed; allowed is wait or count"),
        ("kafka.queues=0", "kafka.queues: '0' is not allowed"),
        ("kafka.bootstrap_servers=localhost", "host:port"),
        ("kafka.bootstrap_servers=localhost:99999", "host:port"),
        ("kafka.topic_prefix=a/b", "kafka.topic_prefix: 'a/b' is not allowed"),
        ("topics.allowed=[[1]]", "a list of strings"),
        ("delay.levels=1s 2x", "a list of durations"),
        ("max_message_size=1GiB", "from 1B to 15MiB"),
        ("warehouse=", "warehouse: '' is not allowed"),
        *((f"warehouse=/a/{name}/b", f"allowed is a directory without {part!r} in its path") for name, part in ODD),
        ("receipts=file:///a/50%25", "allowed is a directory without '%25' in its path"),
        ("trigger_interval", "'=' is missing"),
        ("topics.dedup={a: {window: 1d}, a: {window: 2d}}", "the key a is there already, at line 1"),
        ("checks={on: {table: delta-log}}", "the key on is no text to YAML; write it in quotes"),
        ("kafka.options={1:30: a}", "the key 1:30 is no text"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_allowed(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(override)
    assert expected in str(caught.value)
    assert override.partition("=")[0] in str(caught.value)


def test_a_prefix_and_a_check_topic_fit_into_a_name_together() -> None:
    group = "g" * 100
    fits = load(f"kafka.topic_prefix={'p' * 143}", f"kafka.check_topics=[{group}]").kafka
    assert len(fits.topic(check_topic(group))) == 249
    with pytest.raises(ConfigError, match=r"kafka.check_topics: .* longer than the 249 characters that Kafka allows"):
        load(f"kafka.topic_prefix={'p' * 144}", f"kafka.check_topics=[{group}]")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("topics: {max: 1}\ntransaction: {}\ntopics:\n  max_queues: 2", "line 3, column 1: the key topics is there"),
        ("transaction:\n  timeout: 1s\n  'timeout': 2s", "line 3, column 3: the key timeout is there"),
        ("topics: {max: 1}\ntopics.max: 2", "topics.max: it is given twice"),
        ("kafka: {options: {a.b: 1}}\nkafka.options.a.b: 2", "kafka.options.a.b: it is given twice"),
        ("kafka.options: {a: 1}\nkafka: {options: {a: 2}}", "kafka.options.a: it is given twice"),
        ("checks:\n  on: {table: delta-log}", "line 2, column 3: the key on is no text to YAML; write it in quotes"),
        ("checks: {007: {table: delta-log}}", "the key 007 is no text"),
        ("checks: {1:30: {table: delta-log}}", "the key 1:30 is no text"),
        ("checks: {~: {table: delta-log}}", "the key ~ is no text"),
        ("? [a, b]\n: c", "line 1, column 3: the key ? is no text"),
        ("transaction: {timeout: 1:30}", "'1:30' is not allowed"),
        ("transaction: {timeout: 010}", "'010' is not allowed"),
        ("checks: {g: {table: delta-log, every: 15}}\ntrigger_interval: 15", "'15' is not allowed"),
    ],
)  # fmt: skip
def test_what_yaml_would_drop_or_read_as_something_else_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path=tmp_path / "c.yaml")
    assert told in str(caught.value)


def test_what_stands_in_a_file_is_what_is_meant(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "checks:\n  'on': &base {table: delta-log, every: 1s}\n"
        + "  '007': {<<: *base, every: 2s}\n  17: *base\nreceipts: ~\ntransaction: {reject: yes, check_max: 010}\n"
        + "kafka.options: {client.id: 010}\ntopics:\n"
    )
    found = load(path=tmp_path / "c.yaml")
    assert {group: rule["every"] for group, rule in found.checks.items()} == {"on": "1s", "007": "2s", "17": "1s"}
    assert (found.receipts, found.transaction.reject, found.transaction.check_max) == ("", True, 10)
    assert found.kafka.options == {"client.id": "010"}


def test_two_variables_for_one_key_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.queues: it is given twice"):
        load(environ={"COMMITLAKE__KAFKA__QUEUES": "1", "COMMITLAKE__kafka__queues": "2"})


def test_an_unknown_key_of_the_environment_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.queue; did you mean kafka\.queues"):
        load(environ={"COMMITLAKE__KAFKA__QUEUE": "1"})


def test_an_unknown_key_is_named_with_its_value_unless_it_is_secret() -> None:
    with pytest.raises(
        ConfigError, match=r"transaction\.timout; .* its value is 6s; known keys: warehouse, .*trigger_"
    ):
        load("transaction.timout=6s")
    for name in ("kafka.optons.sasl.key", "sasl.password"):
        with pytest.raises(ConfigError, match=r"its value is \*\*\*;") as caught:
            load(f"{name}=hunter2")
        assert "hunter2" not in str(caught.value)


def test_a_missing_or_broken_file_is_named_without_its_content(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(path=tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("kafka:\n  options: {ssl.key.password: hunter2\n")
    with pytest.raises(ConfigError, match="not YAML at line") as caught:
        load(path=bad)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# warehouse: /data\n", "---\n"])
def test_an_empty_file_may_have_been_cut_short(tmp_path: Path, text: str) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"the configuration {file} is empty: it may have been cut short; write `key"):
        load(path=file)
    file.write_text("{}")  # as somebody wants it
    assert load(path=file) == load()


def test_lists_may_be_yaml_or_separated_by_commas_or_blanks() -> None:
    for given in ('["a*", "b"]', "a*,b", "a* b"):
        assert load(f"topics.allowed={given}").topics.allowed == ("a*", "b")


def test_kafka_options_may_come_one_by_one() -> None:
    found = config.from_mapping({"kafka": {"options": {"security.protocol": "SSL", "request.timeout.ms": 5_000}}})
    assert found.kafka.options == {"security.protocol": "SSL", "request.timeout.ms": "5000"}
    assert load("kafka.options.client.id=a=b").kafka.options == {"client.id": "a=b"}
    both = config.from_mapping({"kafka.options.client.id": "a", "kafka": {"options": {"security.protocol": "SSL"}}})
    assert both.kafka.options == {"client.id": "a", "security.protocol": "SSL"}


def test_a_secret_is_never_shown() -> None:
    found = load("kafka.options.sasl.jaas.config=hunter2", "kafka.options.client.id=shown")
    for text in (repr(found), str(found), found.describe()):
        assert "hunter2" not in text
        assert "shown" in text


@pytest.mark.parametrize(
    "rule",
    [
        {"database": "postgresql://h/db", "user": "u", "password": "hunter2"},
        {"database": "postgresql://u:hunter2@h/db"},
        {"database": "postgresql://u:hunter2/hunter2@hunter2@h/db"},
        {"database": "postgresql://h/db?a=b&sslpassword=hunter2"},
        {"database": "mysql+pymysql://h/db?passwd=hunter2"},
        {"database": "mssql+pyodbc://h/db?odbc_connect=UID%3Du%3BPWD%3Dhunter2"},
        {"table": "delta:abfss://c@a/h/db?sig=hunter2", "match": "keys = id"},
        {"table": "delta-log", "places": ["s3a://k:hunter2@h/db"]},
        {"table": "jdbc:postgresql://h/db?password=hunter2&table=t", "match": "keys = id"},
    ],
)
def test_a_secret_in_a_rule_is_never_shown_though_none_is_allowed_there(rule: dict[str, str]) -> None:
    """The coordinator refuses these rules; `commitlake config` shows what it was given."""
    found = config.from_mapping({"checks": {"g": {**rule, "every": "5s"}}})
    for text in (repr(found), found.describe()):
        assert "hunter2" not in text
    assert "h/db" in found.describe()
    assert "'every': '5s'" in found.describe()
    with pytest.raises(ConfigError) as caught:
        config.from_mapping({"checks": {"g": {**rule, "evry": "5s"}}})
    assert "hunter2" not in str(caught.value)
    for given in ("checks.g.passwort=hunter2", "chekcs={g: {password: hunter2}}"):
        with pytest.raises(ConfigError, match=r"its value is \*\*\*;"):
            load(given)


def test_references_are_resolved_late_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from-file\n")
    found = load("kafka.options.ssl.key.password=env:PLATFORM_SECRET", f"kafka.options.client.id=file:{secret}").kafka
    with pytest.raises(ConfigError, match="PLATFORM_SECRET is not set"):
        found.resolved_options()
    monkeypatch.setenv("PLATFORM_SECRET", "from-env")
    assert found.resolved_options() == {"ssl.key.password": "from-env", "client.id": "from-file"}
    secret.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        found.resolved_options()


def test_a_configuration_survives_pickling() -> None:
    found = load("kafka.options.client.id=a")
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_local_place_is_absolute_and_another_is_left_alone() -> None:
    assert load("warehouse=here").warehouse == str(Path("here").absolute())
    for place in ("s3a://bucket/path", "schema:main.lake", "file:/tmp/x"):
        assert load(f"warehouse={place}").warehouse == place


def test_describe_has_a_line_for_every_key() -> None:
    assert [line.partition(" = ")[0] for line in load().describe().splitlines()] == [key.name for key in KEYS]


def test_each_value_that_is_shown_can_be_given_again() -> None:
    found = load("transaction.timeout=90s", "topics.allowed=a*,b*", "topics.dedup={orders: {by: keys, window: 30d}}")
    shown = found.describe().splitlines()
    assert load(*(line.replace(" = ", "=", 1) for line in shown)) == found
    for line in (
        *("receipts.retention = 30d", "transaction.timeout = 90s", "transaction.retention = 3d", "delay.max = 40d"),
        *("topics.allowed = ['a*', 'b*']", "topics.dedup = {'orders': {by: keys, window: 30d}}"),
        *("maintenance.interval = 10m", "transaction.reject = false"),
    ):
        assert line in shown


def test_an_override_without_an_equals_sign_is_reported_without_its_value() -> None:
    with pytest.raises(ConfigError, match=r"--set kafka\.options\.sasl\.password: '=' is missing") as caught:
        load("kafka.options.sasl.password:hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_secret_of_databricks_is_read_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databricks itself is not here: this is the shape of its `dbutils.secrets.get(scope, key)`."""
    there = ModuleType("databricks.sdk.runtime")
    secrets = {("commitlake", "kafka-jaas"): "the password"}
    there.dbutils = SimpleNamespace(secrets=SimpleNamespace(get=lambda scope, key: secrets[scope, key]))  # type: ignore[attr-defined]
    options = load("kafka.options.sasl.jaas.config=secret:commitlake/kafka-jaas").kafka
    assert masked_options(options.options) == "{'sasl.jaas.config': 'secret:commitlake/kafka-jaas'}"
    with pytest.raises(ConfigError, match="elsewhere use env:NAME or file:/path"):
        options.resolved_options()
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", there)
    assert options.resolved_options() == {"sasl.jaas.config": "the password"}
    with pytest.raises(ConfigError, match="cannot read the secret commitlake/other: KeyError"):
        load("kafka.options.sasl.jaas.config=secret:commitlake/other").kafka.resolved_options()


def test_members_of_enums_are_what_they_stand_for() -> None:
    given = {
        "warehouse": Name.PAID,
        "topics": {"allowed": [Name.ORDERS], "max": Number.MANY},
        "topics.dedup": {Name.ORDERS: {"by": "keys", "window": "1d"}},
        "topics.to_kafka": {Name.ORDERS: Name.PAID},
        "checks": {Name.PAID: {"table": "delta-log"}},
        "kafka": {"topic_prefix": Name.PAID, "check_topics": (Name.PAID,)},
    }
    plain = {
        "warehouse": "paid",
        "topics": {"allowed": ["orders"], "max": 10_000},
        "topics.dedup": {"orders": {"by": "keys", "window": "1d"}},
        "topics.to_kafka": {"orders": "paid"},
        "checks": {"paid": {"table": "delta-log"}},
        "kafka": {"topic_prefix": "paid", "check_topics": ("paid",)},
    }
    assert repr(config.from_mapping(given)) == repr(config.from_mapping(plain))


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
    assert deadline_ms("sink", given) == milliseconds("timeout", given) == 15_000
    assert (consumer_seconds("poll", given), seconds("timeout", given)) == (15, 15)


def test_a_text_needs_its_unit_wherever_it_stands() -> None:
    for sets, environ in ((["transaction.timeout=15"], {}), ([], {"COMMITLAKE__TRANSACTION__TIMEOUT": "0.5"})):
        with pytest.raises(ConfigError, match="allowed is a whole number with a unit"):
            load(*sets, environ=environ)
    with pytest.raises(typer.BadParameter, match="a whole number with a unit"):
        length("15")
    assert length("1h") == 3_600_000


@pytest.mark.parametrize("given", SAME)
def test_a_number_of_a_producer_means_seconds(given: Any) -> None:
    producer: Any = commitlake.Producer.from_conf(KAFKA, "g", send_msg_timeout=given, start_timeout=given)
    assert producer.send_msg_timeout == 15
    producer.send_msg_timeout = "500ms"
    assert producer.send_msg_timeout == 0.5


@pytest.mark.parametrize("given", [100, 999, 100.0])
def test_a_number_that_may_mean_ms_or_seconds_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"timeout: .* meant ms before 0\.3, so write '.*s' or '.*ms'"):
        milliseconds("timeout", given)


@pytest.mark.parametrize("given", [1_000, 30_000.0])
def test_a_number_that_can_only_mean_ms_means_them_with_a_warning(given: Any) -> None:
    with pytest.warns(FutureWarning, match="a number means seconds now"):
        assert milliseconds("timeout", given) == given


@pytest.mark.parametrize("kind", [commitlake.Producer, commitlake.TransactionalProducer])
def test_a_warning_of_ms_names_the_line_of_the_users_program(kind: Any) -> None:
    with pytest.warns(FutureWarning) as warned:
        kind.from_conf(KAFKA, "g", send_msg_timeout=3_000, start_timeout=10_000)
        kind("g", bootstrap_servers="127.0.0.1:9092").send_msg_timeout = 3_000
    assert [each.filename for each in warned] == [__file__] * 3


WRONG: list[Any] = ["soon", "15", -1, "-1s", True, None, [], float("nan"), float("inf"), timedelta(-1), "1.5s", b"1s"]


@pytest.mark.parametrize("given", WRONG, ids=repr)
def test_what_is_no_duration_is_told_with_what_is_allowed(given: Any) -> None:
    assert duration_ms(given) is None
    with pytest.raises(CommitLakeError, match=r"poll: .* is not allowed; give a text such as 500ms"):
        consumer_seconds("poll", given)
    with pytest.raises(ConfigError, match=r"timeout: .* is not allowed; give a text such as 500ms"):
        seconds("timeout", given)
    with pytest.raises(ArgumentError, match=r"timeout: .* is not allowed; give seconds below 100"):
        milliseconds("timeout", given)
    with pytest.raises(ConfigError, match=r"sink: deadline .* is not allowed; give a time such as '1h'$"):
        deadline_ms("sink", given)
    with pytest.raises(ConfigError, match=r"transaction.timeout: .* allowed is a whole number with a unit"):
        from_mapping({"transaction.timeout": given})


def test_a_duration_longer_than_any_clock_is_refused() -> None:
    with pytest.raises(CommitLakeError, match=r"poll: .* is not allowed"):
        consumer_seconds("poll", 10**400)


def test_a_time_out_longer_than_kafkas_clients_can_count_is_refused() -> None:
    assert milliseconds("timeout", "20d") < 2**31
    with pytest.raises(ArgumentError, match=r"timeout: '21d' is not allowed; .* at most 20 days"):
        milliseconds("timeout", "21d")
    with pytest.raises(ArgumentError, match=r"timeout: 10+ is not allowed"):
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
    assert of(file).transaction.timeout_ms == load(path=file).transaction.timeout_ms == 15_000
    assert from_mapping({"warehouse": tmp_path, "receipts": tmp_path / "r"}).warehouse == str(tmp_path)


@pytest.mark.parametrize("given", [5, None, ["a.yaml"], b"\xff"])
def test_what_is_no_configuration_is_told(given: Any) -> None:
    with pytest.raises(ConfigError):
        of(given)


def test_a_configuration_stays_as_it_is() -> None:
    conf = from_mapping({})
    assert isinstance(conf, Config)
    assert of(conf) is conf


def test_a_topic_may_have_columns_for_its_bodies(tmp_path: Path) -> None:
    file = tmp_path / "orders.sql"
    file.write_text("id INT,\nname STRING\n")
    given = {
        "orders": {"format": "json", "schema": "id INT, in STRUCT<x: INT>"},
        "b": {"format": "json", "schema": f"file:{file}"},
    }
    found = config.from_mapping({"topics.schemas": given}).topics
    assert [each.schema for each in found.schemas.values()] == ["id INT, in STRUCT<x: INT>", "id INT,\nname STRING"]
    assert config.from_mapping({"topics.schemas": str(found.schemas)}).topics == found


def test_a_schema_of_avro_is_json_as_a_text_or_as_yaml_reads_it() -> None:
    record = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    found = [
        config.from_mapping({"topics.schemas": {"orders": {"format": "avro", "schema": each}}}).topics
        for each in (record, json.dumps(record))
    ]
    assert found[0] == found[1]
    assert found[0].has_avro
    assert config.from_mapping({"topics.schemas": str(found[0].schemas)}).topics == found[0]


def test_the_configurations_of_the_how_to_are_ones(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "type-a-topic.md").read_text()
    (tmp_path / "payment.avsc").write_text("{}")
    found = re.findall(r"```yaml\n(.+?)```", page.replace("/etc/commitlake", str(tmp_path)), re.DOTALL)
    topics = [config.from_mapping(yaml.safe_load(each)).topics for each in found]
    assert [[*each.schemas] for each in topics] == [["orders"], ["payments", "orders"]]


@pytest.mark.parametrize("registry", ["http://registry:8081", "https://registry/path", "env:REGISTRY", "file:/run/url"])
def test_a_registry_is_a_url_or_where_it_is(registry: str) -> None:
    given = {"orders": {"format": "avro", "schema": "subject:orders-value", "registry": registry}}
    found = config.from_mapping({"topics.schemas": given}).topics
    assert found.schemas["orders"].registry == registry
    assert config.from_mapping({"topics.schemas": str(found.schemas)}).topics == found


def test_a_password_in_the_url_of_a_registry_is_refused_and_not_shown() -> None:
    given = {"orders": {"format": "avro", "schema": "subject:o", "registry": "https://ann:s3cret@registry"}}
    with pytest.raises(ConfigError, match="a URL with a password stands elsewhere, as env:NAME") as told:
        config.from_mapping({"topics.schemas": given})
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    "given",
    [
        "orders",
        {"orders": {"format": "json", "schema": "id INT", "registry": "http://registry"}},
        {"orders": {"format": "avro", "schema": "subject:orders-value"}},
        {"orders": {"format": "avro", "schema": "subject:orders-value", "registry": "registry:8081"}},
        {"orders": {"format": "avro", "schema": "{}", "wire": "confluent"}},
        {"orders": "id INT"},
        {"orders": {"format": "protobuf", "schema": "id INT"}},
        {"orders": {"schema": "id INT"}},
        {"orders": {"format": "json", "schema": ""}},
        {"orders": {"format": "json", "schema": "file:/not/there"}},
        {"a.b": {"format": "json", "schema": "id INT"}},
    ],
)
def test_a_schema_has_a_format_and_columns(given: object) -> None:
    with pytest.raises(ConfigError, match=r"maps such as .format: json, schema: "):
        config.from_mapping({"topics.schemas": given})
