"""Topics whose bodies begin with the id of a schema in a registry: what is known, what is new, and a registry away."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.typed_rows import DECIMAL, FIELDS, GOOD, VALUE, appended, body, long, prepared, record, text, values

from commitlake import config
from commitlake.errors import ConfigError
from commitlake.tables import Warehouse, schema_registry
from commitlake.tables.avro_bodies import _MOST_IDS
from commitlake.tables.typed_topics import prepare

SMALL = record(("id", "int"), ("note", ["null", "string"]))
NULL = b"\0"


class Registry(ThreadingHTTPServer):
    """Answers as Confluent's does, and notes what it was asked for."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.schemas: dict[int, str] = {}
        self.subjects: dict[str, str] = {}
        self.asked: list[str] = []
        self.proofs: set[str | None] = set()
        self.fails: int | None = None
        self.refuses: dict[int, int] = {}
        self.leads_to = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str) -> Any:
        kind, *words = path.strip("/").split("/")
        if kind == "schemas":
            if int(words[-1]) in self.refuses:
                raise Refused(self.refuses[int(words[-1])])
            return {"schema": self.schemas[int(words[-1])]}
        return {"subject": words[0], "version": 3, "id": 1, "schema": self.subjects[words[0]]}


class Refused(Exception):
    """With a status."""


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.proofs.add(self.headers.get("Authorization"))
        try:
            status, found = (self.server.fails, {}) if self.server.fails else (200, self.server.answer(self.path))
        except KeyError:
            status, found = 404, {"error_code": 40403, "message": "not found"}
        except Refused as refused:
            status, found = refused.args[0], {}
        content = json.dumps(found).encode()
        self.send_response(302 if self.server.leads_to else status)
        if self.server.leads_to:
            self.send_header("Location", self.server.leads_to + self.path)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        server.subjects["orders-value"] = record(*FIELDS)
        server.schemas[1] = record(*FIELDS)
        yield server
        server.shutdown()


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path, registry: Registry) -> Warehouse:
    return subject(Warehouse(spark, str(tmp_path)), registry)


def subject(tables: Warehouse, server: Registry, **changes: Any) -> Warehouse:
    given = {"format": "avro", "registry": server.url, "schema": "subject:orders-value", **changes}
    return prepared(tables, **given)


def framed(number: int, content: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content


@pytest.mark.parametrize("few", [True, False])
def test_a_body_is_read_by_the_schema_that_it_was_written_with(
    orders: Warehouse, registry: Registry, few: bool
) -> None:
    older = [field for field in reversed(FIELDS) if field[0] != "note"]
    registry.schemas[7] = record(("more", "int"), *older, ("note", "string"), name="Old")
    old = long(5) + b"".join(GOOD[name] for name, _ in older) + text("hello")
    found = values(appended(orders, [framed(1, body()), framed(7, old)], few=few))
    assert found == [(VALUE, None), (VALUE, None)]
    assert sorted(registry.asked) == ["/schemas/ids/1", "/schemas/ids/7", "/subjects/orders-value/versions/latest"]


def test_what_does_not_fit_says_why(orders: Warehouse, registry: Registry) -> None:
    registry.schemas |= {
        2: '"string"',
        3: '{"type": "record", "name": "x", "fields": [{"name": "a", "type": "of.another.Subject"}]}',
        4: record(("id", "string")),
        5: record(*FIELDS, ("idle", {"type": "array", "items": "null"})),
    }
    told = {
        b"": "EMPTY",
        body(): "UNFIT",
        b"\1" + framed(1, body())[1:]: "UNFIT",
        b"\0\0\0": "UNFIT",
        framed(1, b""): "UNFIT",
        framed(1, body()[:-1]): "UNFIT",
        framed(1, body() + b"\0"): "UNFIT",
        framed(2, text("x")): "UNKNOWN_SCHEMA",
        framed(3, NULL): "UNKNOWN_SCHEMA",
        framed(4, text("x")): "UNFIT",
        framed(5, body() + long(1 << 62)): "UNKNOWN_SCHEMA",  # Avro would count the items
        framed((1 << 32) - 1, body()): "UNKNOWN_SCHEMA",
    }
    assert values(appended(orders, [*told])) == [(None, reason) for reason in told.values()]


def test_a_known_schema_is_asked_for_once_and_an_unknown_one_after_a_pause(
    orders: Warehouse, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        appended(orders, [framed(1, body()), framed(9, body())])
    assert sorted(registry.asked[1:]) == ["/schemas/ids/1", "/schemas/ids/9"]
    assert "bodies with the schema 9 have no value for now, UNKNOWN_SCHEMA: the registry answers 404: " in caplog.text
    registry.schemas[9] = registry.schemas[1]
    schema_registry.registry(registry.url)._quiet_until_s.clear()  # as after half a minute
    appended(orders, [framed(9, body())])
    assert registry.asked[3:] == ["/schemas/ids/9"]


def test_a_registry_that_is_away_holds_up_nothing_and_takes_nothing_from_what_is_known(
    orders: Warehouse, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    appended(orders, [framed(1, body())])
    registry.fails = 503
    place = appended(orders, *([framed(number, body()), framed(1, body())] for number in range(5, 9)))
    found = values(place)
    assert (found.count((VALUE, None)), found.count((None, "UNKNOWN_SCHEMA"))) == (5, 4)
    assert len(registry.asked) == 3, "one question found that it is away"
    assert "the registry answers 503: " in caplog.text


def test_bodies_with_any_ids_ask_only_for_the_most_frequent(
    orders: Warehouse, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    hostile = [framed(number, b"") for number in range(1_000, 1_300)]
    place = appended(orders, [*hostile, *[framed(1, body())] * 2])
    assert len(registry.asked) == 1 + _MOST_IDS
    assert values(place).count((VALUE, None)) == 2


def test_the_address_with_its_password_stands_elsewhere_and_is_never_shown(
    spark: SparkSession, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY", registry.url.replace("//", "//ann:s%40cret@") + "/")
    tables = subject(Warehouse(spark, str(tmp_path)), registry, registry="env:REGISTRY")
    assert values(appended(tables, [framed(1, body())])) == [(VALUE, None)]
    assert registry.proofs == {f"Basic {base64.b64encode(b'ann:s@cret').decode()}"}
    registry.fails = 401
    with pytest.raises(ConfigError, match="'clicks' can't be had: the registry answers 401") as told:
        subject(Warehouse(spark, f"{tmp_path}/new"), registry, registry="env:REGISTRY", schema="subject:clicks")
    assert "cret" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:1", "can't be had: .*Connection refused"),
        ("file:/dev/null", "what it names is no URL; allowed is http or https://HOST"),
        ("env:NOT_SET", "the environment variable NOT_SET is not set"),
    ],
)
def test_a_start_without_its_registry_says_so(spark: SparkSession, url: str, told: str) -> None:
    given = {"format": "avro", "registry": url, "schema": "subject:orders-value"}
    wanted = config.from_mapping({"topics.schemas": {"orders": given}}).topics.schemas
    with pytest.raises(ConfigError, match=rf"topics\.schemas\.registry: .*{told}"):
        prepare(Warehouse(spark, "/nowhere"), wanted)


def test_the_topics_schema_may_be_given_beside_a_registry(orders: Warehouse, registry: Registry) -> None:
    registry.schemas[7] = record(("note", "string"), ("id", "int"))
    tables = subject(Warehouse(orders.spark, f"{orders.root}/other"), registry, schema=SMALL)
    found = values(appended(tables, [framed(7, text("x") + long(3)), framed(1, body())]))
    assert found == [({"id": 3, "note": "x"}, None), (None, "UNFIT")]


def begun_again(tables: Warehouse, server: Registry) -> Warehouse:
    """The tables at the next start, in another process, which remembers nothing of the registry."""
    schema_registry.registry.cache_clear()
    return subject(Warehouse(tables.spark, tables.root), server)


def test_a_start_goes_on_with_the_last_schema_while_the_registry_is_away(
    orders: Warehouse, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Its table came after the first start."""
    appended(orders, [framed(1, body())])
    registry.fails = 503
    tables = begun_again(orders, registry)
    assert "orders keeps the schema of its subject that it had before: topics.schemas.registry: " in caplog.text
    appended(tables, [framed(1, body())])
    registry.fails = None
    found = values(appended(begun_again(orders, registry), [framed(1, body())]))
    assert sorted(found, key=str) == [(None, "UNKNOWN_SCHEMA"), (VALUE, None), (VALUE, None)]


RECURSIVE = record(("below", ["null", "shop.Order"]))


@pytest.mark.parametrize("newest", [record(("id", "string")), RECURSIVE, "message X {}"])
def test_a_newest_schema_that_does_not_fit_the_table_stops_no_start(
    orders: Warehouse, registry: Registry, newest: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another team registers it, weeks before the start."""
    appended(orders, [framed(1, body())])
    registry.subjects["orders-value"] = registry.schemas[2] = newest
    place = appended(begun_again(orders, registry), [framed(1, body()), framed(2, text("x"))])
    assert "orders keeps the schema of its subject that it had before: " in caplog.text
    found = [error for value, error in values(place) if value is None]
    assert found in (["UNFIT"], ["UNKNOWN_SCHEMA"])
    registry.subjects["orders-value"] = record(*FIELDS, ("more", ["null", "string"]))
    registry.schemas[3] = registry.subjects["orders-value"]
    place = appended(begun_again(orders, registry), [framed(3, body() + long(1) + text("yes"))])
    assert ({**VALUE, "more": "yes"}, None) in values(place)


def test_an_id_that_the_registry_refuses_makes_no_other_wait(orders: Warehouse, registry: Registry) -> None:
    registry.refuses = {(1 << 32) - 1: 400, (1 << 31): 422}
    found = values(appended(orders, [*[framed(number, body()) for number in registry.refuses] * 2, framed(1, body())]))
    assert found == [*[(None, "UNKNOWN_SCHEMA")] * 4, (VALUE, None)]


def test_known_ids_come_before_any_number_of_others(
    orders: Warehouse, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    appended(orders, [framed(1, body())])
    hostile = [framed(number, b"") for number in range(1_000, 1_000 + _MOST_IDS)]
    assert values(appended(orders, [*hostile * 2, framed(1, body())])).count((VALUE, None)) == 2


def test_numbers_of_another_unit_are_not_taken_for_the_topics(
    orders: Warehouse, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Avro would read 12.50 as 0.1250, and milliseconds as microseconds."""
    scaled = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 4}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    kinds = dict(FIELDS)
    registry.schemas |= {
        5: record(*(kinds | {"amount": scaled}).items()),
        6: record(*(kinds | {"at": ["null", micros]}).items()),
        7: record(*(kinds | {"at": "long"}).items()),
        8: record(*(kinds | {"amount": {**DECIMAL, "precision": 8}}).items()),
    }
    bodies = {5: body(), 6: body(at=long(1) + GOOD["at"]), 7: body(), 8: body()}
    found = values(appended(orders, [framed(number, each) for number, each in bodies.items()]))
    assert found == [(None, "UNKNOWN_SCHEMA")] * 2 + [(VALUE, None)] * 2
    assert "has value.amount of decimal 4" in caplog.text and "it is of decimal 2" in caplog.text


def test_a_password_does_not_go_where_an_answer_leads(spark: SparkSession, registry: Registry) -> None:
    with Registry() as other:
        Thread(target=other.serve_forever, daemon=True).start()
        registry.leads_to = other.url
        asks = schema_registry.SchemaRegistry(registry.url.replace("//", "//ann:secret@"))
        with pytest.raises(ConfigError, match=rf"the registry answers 302: go to {other.url}/subjects/x/"):
            asks.latest("x")
        assert (len(registry.asked), other.asked) == (1, [])
        other.shutdown()


@pytest.mark.parametrize("url", ["http://ann:se/cret@h", "http://ann:1#cret@host", "ann:cret@host", "http://", ":"])
def test_what_is_no_url_is_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY", url)
    with pytest.raises(ConfigError, match="what it names is no URL") as told:
        schema_registry.SchemaRegistry("env:REGISTRY").latest("x")
    assert "cret" not in str(told.value)


@pytest.mark.parametrize("answer", [["schema"], {"id": 1}, {"schema": {"type": "string"}}, "schema"])
def test_an_answer_without_a_schema_is_told(registry: Registry, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "answer", lambda _: answer)
    with pytest.raises(ConfigError, match="the registry gives no "):
        schema_registry.SchemaRegistry(registry.url).latest("x")
