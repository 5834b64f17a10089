"""Which places are on this machine, and their paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlake.config.locations import is_local, local_path


@pytest.mark.parametrize("place", ["/data/lake", "file:/data/lake", "file:///data/lake"])
def test_a_path_and_a_file_uri_are_local(place: str) -> None:
    assert is_local(place)
    assert local_path(place) == Path("/data/lake")


@pytest.mark.parametrize("place", ["s3a://bucket/lake", "hdfs://host/lake", "schema:main.lake"])
def test_other_uris_and_catalog_schemas_are_not_local(place: str) -> None:
    assert not is_local(place)
