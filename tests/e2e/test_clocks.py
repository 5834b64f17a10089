"""A start compares the driver's clock with the broker's, and warns when they are more than a second apart."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.order_load import SETTINGS, OrderLoad
from tests.support.polling import patience, wait_for
from tests.support.running import coordinator

from commitlake import config
from commitlake.config import Config
from commitlake.coordinator.coordinator import Coordinator
from commitlake.kafka import clock_skew, topics
from commitlake.kafka.clock_skew import Skew
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.tools.audit.audit import audit

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@pytest.fixture
def configured(broker: EmbeddedBroker) -> Config:
    prefix = f"clock-{uuid.uuid4().hex[:8]}."
    return config.from_mapping({"kafka.bootstrap_servers": broker.bootstrap_servers, "kafka.topic_prefix": prefix})


def measured_in_400_ms(configured: Config) -> Skew | None:
    """The skew, unless the round trip took so long that half a second may look like more."""
    skew = topics.publish_settings(configured, [])
    return skew if skew.error_ms < 400 else None


def shift(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Sets the driver's clock ahead."""
    monkeypatch.setattr(clock_skew, "now_ms", lambda: time.time_ns() // 1_000_000 + int(seconds * 1_000))


@pytest.mark.parametrize("seconds", [5, -5, 1.5, 0.5, 0])
def test_the_measured_skew_is_right_to_half_a_round_trip(
    configured: Config, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    topics.ensure_topics(configured)
    shift(monkeypatch, seconds)
    skew = wait_for(lambda: measured_in_400_ms(configured))
    assert abs(skew.ahead_ms - seconds * 1_000) <= skew.error_ms + 1
    assert skew.is_certain == (abs(seconds) > 1)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5.0 s ahead of Kafka's: checks and delayed messages go by Kafka's"),
        pytest.param(-5, "5.0 s behind", marks=pytest.mark.soak),
    ],
)
def test_a_start_warns_of_a_wrong_clock_and_names_the_remedy(
    spark: SparkSession,
    configured: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    text: str,
) -> None:
    assert warned(spark, configured, tmp_path, caplog) == []
    shift(monkeypatch, seconds)
    (warning,) = warned(spark, configured, tmp_path, caplog)
    assert text in warning
    assert "NTP" in warning


def warned(spark: SparkSession, configured: Config, place: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our own warnings about clocks of one start; kafka-python's name the topic, and it begins with "clock"."""
    caplog.clear()
    own = replace(configured, warehouse=str(place / "warehouse"), checkpoints=str(place / "checkpoints"))
    with caplog.at_level(logging.WARNING, "commitlake"), Coordinator(spark, own).start(available_now=True):
        pass
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("commitlake")]
    return [message for message in ours if "clock" in message]


def test_without_append_times_in_settings_no_skew_is_measured(
    configured: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = KafkaAdminClient(bootstrap_servers=configured.kafka.bootstrap_servers)
    settings = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime", "max.message.bytes": "8388608"}
    settings["compression.type"] = "uncompressed"
    wanted = {configured.kafka.topic("settings"): {"num_partitions": 1, "configs": settings}}
    client.create_topics(wanted, wait_for_metadata=True)
    client.close()
    (warning,) = topics.ensure_topics(configured)
    assert "message.timestamp.type=CreateTime" in warning
    shift(monkeypatch, 5)
    assert not topics.publish_settings(configured, []).is_certain


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not on this machine")
def test_a_clock_that_jumps_by_an_hour_and_back_ends_nothing_early_or_twice(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's and Java's; Kafka's and the producers' is right."""
    (ahead := tmp_path / "ahead").write_text("+0")
    monkeypatch.setenv("LD_PRELOAD", str(FAKETIME[-1]))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(ahead))
    monkeypatch.setenv("FAKETIME_CACHE_DURATION", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    monkeypatch.setenv("FAKETIME_FORCE_MONOTONIC_FIX", "0")  # without it Java's timed waits spin
    with Lake(broker.bootstrap_servers, "jumps.", tmp_path, **SETTINGS) as lake:
        given = {key: value for key, value in lake.settings.items() if key not in ("warehouse", "checkpoints")}
        with coordinator(tmp_path, **given) as running:
            running.ready()
            load = OrderLoad(lake, tmp_path)
            with load.steadily():
                for seconds in ("+3600", "+0", "-3600", "+0"):
                    ahead.write_text(seconds)
                    time.sleep(10)
                    running.until(load.is_shown(), 240 * patience())
            running.until(load.is_over, 300 * patience())
            running.stop()
        load.assert_outcome()
        assert audit(spark, str(lake.tables)).is_well
