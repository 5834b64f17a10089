"""What a backup makes of commits that a topic's owner has added."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from commitlake.tools import backup


def append(place: Path, marker: str) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": marker})
    write_deltalake(place, pa.table({"n": [1]}), mode="append", commit_properties=properties)


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
