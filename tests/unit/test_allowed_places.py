"""Where the coordinator writes marks for a producer: only below the places of a rule, never in its own tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlake.clients.delta import delta_transaction
from commitlake.clients.delta.allowed_places import AllowedPlaces
from commitlake.config import from_mapping
from commitlake.errors import ConfigError, RecordError


def places(warehouse: str, *allowed: str) -> AllowedPlaces:
    rule = {"table": "delta-log", "places": [*allowed]}
    own = {"warehouse": warehouse, "checkpoints": "s3://other/checkpoints"}
    conf = from_mapping({**own, "checks": {"g": rule}})
    return AllowedPlaces(conf, "g", conf.checks["g"]["places"])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("orders", "wh/transactions", "victim"):
        (tmp_path / "lake" / name).mkdir(parents=True)
    return tmp_path / "lake"


def test_local_places_in_every_spelling(lake: Path) -> None:
    allowed = places(f"{lake}/wh", f"{lake}/orders", f"{lake}/wh_more")
    for place in (f"{lake}/orders", f"file:{lake}/orders/", f"FILE://{lake}/orders", f"{lake}/wh/../orders"):
        assert allowed.check(place) == f"{lake}/orders"
    assert allowed.check(f"{lake}/orders/of/today") == f"{lake}/orders/of/today"
    assert allowed.check(f"{lake}/wh_more") == f"{lake}/wh_more"
    for place in (f"{lake}/victim", f"{lake}/orders/../victim", f"{lake}/orders2", f"{lake}", "orders", "", "a\0b"):
        with pytest.raises(RecordError, match=r"is not allowed.*"):
            allowed.check(place)


def test_the_coordinators_own_tables_are_never_allowed_however_they_are_named(lake: Path) -> None:
    allowed = places(f"{lake}/wh", str(lake))
    (lake / "link").symlink_to(lake / "wh")
    (lake / "circle").symlink_to(lake / "circle")
    own = ["wh", "wh/transactions", "orders/../wh/half", "link/transactions", "WH/Transactions", "wh_receipts/groups"]
    for place in [*(f"{lake}/{name}" for name in own), f"file://{lake}/wh/transactions", f"File:{lake}/wh/x"]:
        with pytest.raises(RecordError, match="outside the warehouse"):
            allowed.check(place)
    with pytest.raises(RecordError):
        allowed.check(f"{lake}/circle/x")
    assert allowed.check(f"{lake}/victim") == f"{lake}/victim"


def test_a_place_behind_a_link_is_used_without_it(lake: Path) -> None:
    (lake / "link").symlink_to(lake / "victim")
    with pytest.raises(RecordError):
        places(f"{lake}/wh", f"{lake}/orders").check(f"{lake}/link")
    assert places(f"{lake}/wh", f"{lake}/link").check(f"{lake}/link/t") == f"{lake}/victim/t"


def test_a_log_that_is_a_link_to_another_tables_is_refused(lake: Path) -> None:
    (lake / "orders/x").mkdir()
    (lake / "orders/x/_delta_log").symlink_to(lake / "wh/transactions/_delta_log")
    with pytest.raises(RecordError, match="is not allowed"):
        places(f"{lake}/wh", f"{lake}/orders").check(f"{lake}/orders/x")


def test_the_table_of_sinks_needs_no_place(lake: Path) -> None:
    assert places(f"{lake}/wh").check(f"{lake}/wh_receipts/sinks") == f"{lake}/wh_receipts/sinks"
    with pytest.raises(RecordError):
        places(f"{lake}/wh").check(f"{lake}/wh_receipts/sinks/more")


@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [
        ("s3://lake/orders", True),
        ("S3A://lake/orders/today/", True),
        ("s3://lake/orders2", False),
        ("s3://lake2/orders", False),
        ("s3://lake/wh/transactions", False),
        ("s3a://lake/WH", False),
        ("s3://other/checkpoints/x", False),
        ("s3://lake/orders/../wh/transactions", False),
        ("s3://lake/orders/%2e%2e/wh", False),
        ("s3://lake/orders/./x", False),
        ("s3://lake//orders", False),
        ("s3://lake/orders\\..\\wh", False),
        ("s3://lake/orders?x=1", False),
        ("s3://", False),
        ("memory:///orders", False),
        ("/lake/orders", False),
    ],
)
def test_places_in_a_bucket(place: str, is_allowed: bool) -> None:
    allowed = places("s3a://lake/wh", "s3a://lake/orders", "s3://lake/wh", "s3://other/")
    if is_allowed:
        assert allowed.check(place) == place
    else:
        with pytest.raises(RecordError, match="is not allowed"):
            allowed.check(place)


def test_a_place_that_can_be_read_in_several_ways_is_no_rule() -> None:
    with pytest.raises(ConfigError, match=r"checks.g.places: 's3://lake/%77h'.*write it without escapes"):
        places("s3://lake/wh", "s3://lake/%77h")


def test_the_coordinators_own_places_may_be_of_any_kind() -> None:
    for own in ("hdfs:///lake/wh", "dbfs:/lake/wh", "schema:main.lake", "s3a://lake/a%20b", "s3://lake/x/../wh"):
        allowed = places(own, "s3://lake/orders")
        assert allowed.check("s3://lake/orders/t") == "s3://lake/orders/t"
    with pytest.raises(RecordError):
        places("s3://lake/x/../wh", "s3://lake").check("s3://lake/wh/transactions")


def test_places_are_a_list_of_texts_for_logs_only() -> None:
    for wrong in ("s3://lake/orders", [1], [""], {"a": "b"}):
        with pytest.raises(ConfigError, match="places is a list of directories or URIs"):
            from_mapping({"checks": {"g": {"table": "delta-log", "places": wrong}}})


def test_a_delta_transaction_refuses_with_an_error_that_is_a_name_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^delta_transaction: delta\.tables: '/elsewhere' is not allowed"):
        delta_transaction._check(places(f"{tmp_path}/warehouse", "/lake"), "/elsewhere")
