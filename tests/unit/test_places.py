"""Which places are on this machine, and their paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlake.config.locations import is_local, local_path, no_parent


@pytest.mark.parametrize("place", ["/data/lake", "file:/data/lake", "file:///data/lake"])
def test_a_path_and_a_file_uri_are_local(place: str) -> None:
    assert is_local(place)
    assert local_path(place) == Path("/data/lake")


@pytest.mark.parametrize("place", ["s3a://bucket/lake", "hdfs://host/lake", "schema:main.lake"])
def test_other_uris_and_catalog_schemas_are_not_local(place: str) -> None:
    assert not is_local(place)


@pytest.mark.parametrize("place", ["/", "file:/", "file:///"])
def test_the_root_of_the_file_system_is_no_place(place: str) -> None:
    """A path that was cut short: eighteen tables were made there."""
    assert str(no_parent(place)).startswith(f"{place} is not allowed: it is the root of the file system; give a dir")


def test_a_local_place_needs_the_directory_above_it(tmp_path: Path) -> None:
    assert no_parent(str(tmp_path / "new")) is None
    assert no_parent(f"file://{tmp_path}/new") is None
    told = f"{tmp_path}/cut/new is not allowed: the directory {tmp_path}/cut is not there; give a place in one that is"
    assert str(no_parent(f"{tmp_path}/cut/new")).startswith(told)
    assert no_parent("s3a://bucket/a/b") is no_parent("schema:main.lake") is None
