"""Which places are on this machine, and access to those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlake.config.locations import is_local, local_path, no_parent
from commitlake.config.object_store import spark_settings, storage_options


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


OWN = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}


def test_without_an_endpoint_of_ones_own_nothing_is_set() -> None:
    assert spark_settings({"AWS_REGION": "eu-central-1"}) == {}
    assert storage_options(None, {"AWS_REGION": "eu-central-1"}) is None


def test_buckets_of_an_own_endpoint_are_directories() -> None:
    assert spark_settings(OWN) == {"spark.hadoop.fs.s3a.path.style.access": "true"}


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("http://store:9000", {"allow_http": "true"}), ("HTTP://store", {"allow_http": "true"}), ("https://store", None)],
)
def test_an_endpoint_without_tls_is_allowed_where_it_was_asked_for(endpoint: str, expected: object) -> None:
    assert storage_options(None, {"AWS_ENDPOINT_URL": endpoint}) == expected


def test_what_a_caller_gives_counts() -> None:
    assert storage_options({"allow_http": "false", "x": "y"}, OWN) == {"allow_http": "false", "x": "y"}


def test_a_variable_that_is_set_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", OWN["AWS_ENDPOINT_URL"])
    assert storage_options({"region": "eu"}) == {"allow_http": "true", "region": "eu"}
