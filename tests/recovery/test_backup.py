"""A backup that is made while a coordinator runs is a warehouse that goes on; a plain copy that is none is refused."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.polling import wait_for

from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import WarehouseError
from commitlake.tools.audit.audit import audit
from commitlake.tools.backup import backup


@contextmanager
def sending(lake: Lake) -> Iterator[list[str]]:
    """Transactions, parts, delays and normal messages, one after the other; yields the names of what must be shown."""
    sent, stop = list[str](), threading.Event()

    def send() -> None:
        while not stop.is_set():
            name = f"m{len(sent)}"
            first = lake.half(name)
            part = lake.half(name, 1, first=first, topic="points", msg_id=f"p{name}", body=f"p{name}".encode())
            lake.op("COMMIT", name, first, part)
            lake.message(f"n{name}", topic="news")
            lake.message(f"d{name}", topic="reminders", delays={"TIMER_DELAY_MS": "1000"})
            lake.op("ROLLBACK", f"no-{name}", lake.half(f"no-{name}"))
            sent.extend((name, f"p{name}", f"n{name}", f"d{name}"))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def shown(lake: Lake) -> Counter[str]:
    return Counter(row["body"].decode() for topic in lake.topics() for row in lake.topic(topic))


def has_more(lake: Lake, than: int) -> bool:
    return len(shown(lake)) > than


def runs_until(spark: SparkSession, lake: Lake, most: int) -> bool:
    lake.run(spark)
    return len(shown(lake)) >= most


def restored(lake: Lake, place: Path) -> Lake:
    kafka = lake.config.kafka
    return Lake(kafka.bootstrap_servers, kafka.topic_prefix, place)


@pytest.mark.timeout(900)
def test_a_backup_of_a_running_warehouse_goes_on_with_each_message_once(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    places = [tmp_path / f"copy-{number}" for number in range(3)]
    with Coordinator(spark, lake.config).start(), sending(lake) as sent:
        for place in places:
            place.mkdir()
            before = len(shown(lake))
            wait_for(partial(has_more, lake, before + 20))
            assert backup(str(lake.warehouse), place / "warehouse").landing_id >= 0
    for place in places:
        with restored(lake, place) as copy:
            copy.run(spark)
            wait_for(partial(runs_until, spark, copy, len(sent)))
            assert shown(copy) == Counter(sent)
            assert audit(spark, str(copy.warehouse)).findings == ()


def test_a_backup_has_all_of_a_table_that_its_owner_changed(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    for number in range(8):
        lake.message(f"m{number}", topic="news")
    lake.run(spark)
    place, copied, owner = lake.warehouse / "topics/news", tmp_path / "copy", spark.newSession()
    owner.conf.set("spark.databricks.delta.commitInfo.userMetadata", "by hand")
    properties = "'delta.appendOnly' = 'false', 'delta.enableDeletionVectors' = 'true', 'delta.checkpointPolicy' = 'v2'"
    owner.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ({properties}, 'delta.checkpointInterval' = '1')")
    owner.sql(f"DELETE FROM delta.`{place}` WHERE message_id < 'm4'")
    backup(str(lake.warehouse), copied)
    shutil.rmtree(lake.warehouse)
    log = copied / "topics/news/_delta_log"
    for commit in sorted(log.glob(f"{'[0-9]' * 20}.json"))[:-1]:
        commit.unlink()  # as cleaned up in time: a checkpoint stands for them
    left = spark.read.format("delta").load(str(copied / "topics/news")).select("message_id").collect()
    assert sorted(row[0] for row in left) == ["m4", "m5", "m6", "m7"]


@pytest.mark.parametrize(
    ("older", "told"),
    [
        ("half", "the table half is older than positions, which says that landing_id"),
        ("topics/news", "the table topics/news is older than positions, which says that landing_id"),
        ("transactions", "the table transactions is older than batches, which says that batch_id"),
        ("batches", "batches ends with 0, and the ledger has 1 to 2"),
    ],
)
def test_a_copy_whose_tables_are_of_different_moments_is_refused(
    spark: SparkSession, lake: Lake, older: str, told: str
) -> None:
    for number in range(3):
        lake.commit(f"t{number}")
        lake.message(f"n{number}", topic="news")
        lake.run(spark)
        if number == 0:
            shutil.copytree(lake.warehouse / older, lake.root / "older")
    shutil.rmtree(lake.warehouse / older)
    shutil.copytree(lake.root / "older", lake.warehouse / older)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    with pytest.raises(WarehouseError, match=f"{told}.*commitlake backup"):
        lake.run(spark)


def test_a_backup_goes_to_a_new_place_only(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="is there already"):
        backup(str(tmp_path), tmp_path)
    with pytest.raises(WarehouseError, match=r"s3://lake is no local directory"):
        backup("s3://lake", tmp_path / "new")
