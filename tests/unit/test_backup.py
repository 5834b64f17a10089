"""What a backup makes of commits that a topic's owner has added."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from commitlake.tools import backup


def append(place: Path, marker: str, **row: object) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": marker})
    rows = pa.Table.from_pylist([row or {"n": 1}])
    write_deltalake(place, rows, mode="append", commit_properties=properties)


@pytest.mark.parametrize("own", ["nightly fix", "[1]", '{"batch_id":"mine"}', '{"batch_id":null}'])
def test_an_owners_commits_are_none_of_a_batch(tmp_path: Path, own: str) -> None:
    for marker in ('{"batch_id":1}', '{"landing_id":7}', '{"batch_id":2}', '{"landing_id":8}', own):
        append(tmp_path, marker)
    log = backup._Log(tmp_path)
    assert log.newest("batch_id") == 2
    assert (log.end_before("batch_id", 1), log.version) == (8, 1)


def test_a_checkpoint_in_json_is_no_commit(tmp_path: Path) -> None:
    append(tmp_path, "")
    (tmp_path / "_delta_log" / f"{0:020}.checkpoint.0a1b-2c.json").write_text(json.dumps({}))
    assert backup._Log(tmp_path).version == 0


def test_what_went_to_kafka_of_later_versions_than_the_copied_one_is_forgotten(tmp_path: Path) -> None:
    place = tmp_path / "warehouse"
    for name in (*backup._FIRST, *backup._OTHERS):
        if name not in ("destinations", "forwarded"):
            append(place / name, "{}")
    for topic in ("orders", "points"):
        append(place / "destinations", "{}", topic=topic, table=f"topics/{topic}")
        for batch in range(3):
            append(place / "topics" / topic, f'{{"batch_id":{batch}}}')
    append(place / "batches", '{"batch_id":1}')  # the third is not complete, so it is left out
    for number in range(1, 4):
        append(place / "forwarded", "", topic="orders", target="sent", next_version=number)
    append(place / "forwarded", "", topic="points", target="sent", next_version=2)
    append(place / "forwarded", "", topic="gone", target="sent", next_version=9)
    copied = backup.backup(str(place), tmp_path / "copy")
    assert copied.batch_id == 1
    assert DeltaTable(tmp_path / "copy/topics/orders").version() == 1
    rows = DeltaTable(tmp_path / "copy/forwarded").to_pyarrow_table().to_pylist()
    sent = sorted((row["topic"], row["next_version"]) for row in rows)
    assert sent == [("gone", 9), ("orders", 1), ("orders", 2), ("points", 2)]
