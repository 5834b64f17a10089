"""Tables in a catalog, read without Spark: by their schema's place, or as Unity Catalog's API tells, however slowly."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from tests.support.polling import wait_for
from tests.support.topic_table import message, running, write
from tests.support.unity import Unity, serving
from typer.testing import CliRunner

import commitlake
from commitlake.clients.consumer import plan
from commitlake.clients.consumer import topic as topics
from commitlake.clients.consumer.cursor import Cursor
from commitlake.clients.consumer.message import ReceivedMessage
from commitlake.clients.consumer.topic import Topic
from commitlake.config import Config, from_mapping
from commitlake.config.object_store import storage_options
from commitlake.errors import AnswerError, CatalogAwayError, CommitLakeError, ConfigError, NoTableError, WarehouseError
from commitlake.reading import catalog
from commitlake.reading.catalog import location
from commitlake.reading.questions.tables import opened
from commitlake.reading.table import Snapshot
from commitlake.reading.web import asked
from commitlake.tools.cli.app import app

AWS = {"access_key_id": "AKIA", "secret_access_key": "hush", "session_token": "once"}
AS_OPTIONS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "once"}
LATE = 1 << 42
NOW = 1_790_000_000_000


@pytest.fixture
def unity() -> Iterator[Unity]:
    with serving(Unity()) as server:
        yield server


@pytest.fixture
def conf(unity: Unity, tmp_path: Path) -> Config:
    """A topic of four messages, whose table lies where only the catalog knows."""
    write(tmp_path / "managed", "uuid-1", [message(n, batch=0, queue=n % 2) for n in range(4)])
    unity.tables["main.lake.topic_orders"] = f"file://{tmp_path}/managed/topics/uuid-1"
    return from_mapping(unity.conf(receipts=str(tmp_path / "receipts")))


def read(conf: Config, **more: Any) -> list[str]:
    with commitlake.consume(conf, "orders", group="points", follow=False, **more) as messages:
        return [done(each) for each in messages]


def done(received: ReceivedMessage) -> str:
    received.done()
    return received.message_id


def options(conf: Config, name: str = "topics/orders") -> dict[str, str] | None:
    return storage_options(location(conf, name).options, {})


def test_below_a_schemas_place_tables_have_their_names_in_lower_case() -> None:
    conf = from_mapping({"warehouse": "schema:spark_catalog.lake", "catalog.location": "s3a://bucket/lake.db/"})
    assert location(conf, "half") == ("s3a://bucket/lake.db/half", None)
    assert location(conf, "topics/TopicTest", {"a": "b"}) == ("s3a://bucket/lake.db/topic_topictest", {"a": "b"})


def test_both_ways_of_the_page_are_configurations() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text()
    snippets = re.findall(r"```yaml\n(.*?)```", page.split("\n## A catalog\n")[1].split("\n## ")[0], re.DOTALL)
    hive, unity = (from_mapping(yaml.safe_load(text)) for text in snippets)
    assert location(hive, "topics/orders").uri == "s3a://lake/warehouse/commitlake.db/topic_orders"
    assert (unity.catalog.url[:8], unity.catalog.token) == ("https://", "env:DATABRICKS_TOKEN")
    assert all(each.is_in_catalog and each.receipts_place.endswith("commitlake_receipts") for each in (hive, unity))


def test_a_directory_is_no_catalog_whatever_else_is_configured() -> None:
    conf = from_mapping({"warehouse": "/lake", "catalog.location": "/elsewhere"})
    assert location(conf, "topics/%RETRY%g").uri == location("/lake", "topics/%RETRY%g").uri == "/lake/topics/~RETRY~g"


@pytest.mark.parametrize("line", ["doctor", "tx list", "find k1", "unfinished orders --group g"])
def test_without_either_way_both_are_named(line: str, tmp_path: Path) -> None:
    receipts = f"--set=receipts={tmp_path}/receipts"
    done = CliRunner().invoke(app, [*line.split(), "--set=warehouse=schema:main.lake", receipts])
    told = f"{done.output} {done.exception}"
    assert "schema:main.lake can't be read here; name the place of its tables, catalog.location, or" in told
    assert "catalog.url" in told


def test_a_consumer_reads_where_unity_catalog_says(unity: Unity, conf: Config) -> None:
    assert sorted(read(conf)) == ["m0", "m1", "m2", "m3"]
    assert read(conf) == []
    assert {path for path, _ in unity.asked} == {
        *("GET /tables/main.lake.topic_orders", "GET /tables/main.lake.maintenance"),
        "POST /temporary-table-credentials",
    }
    wanted = [body for _, body in unity.asked if body]
    assert wanted == [{"table_id": f"id of {unity.tables['main.lake.topic_orders']}", "operation": "READ"}]


def test_a_consumer_waits_for_a_topic_that_the_catalog_does_not_have_yet(unity: Unity, conf: Config) -> None:
    place = unity.tables.pop("main.lake.topic_orders")
    found: list[str] = []
    with running(
        commitlake.consume(conf, "orders", group="points", poll="50ms"), lambda each: found.append(each.message_id)
    ):
        wait_for(lambda: unity.asked)
        assert found == []
        unity.tables["main.lake.topic_orders"] = place
        wait_for(lambda: len(found) == 4)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"aws_temp_credentials": AWS}, AS_OPTIONS),
        ({"azure_user_delegation_sas": {"sas_token": "sig=x"}}, {"AZURE_STORAGE_SAS_TOKEN": "sig=x"}),
        ({"gcp_oauth_token": {"oauth_token": "x"}}, None),
        ({"aws_temp_credentials": None, "expiration_time": None}, None),
    ],
)
def test_credentials_become_options_of_deltalake(unity: Unity, conf: Config, told: Any, expected: object) -> None:
    unity.told = told
    assert options(conf) == expected
    given = {"AWS_REGION": "eu-central-1", "AWS_SESSION_TOKEN": "mine"}
    assert storage_options(location(conf, "topics/orders", given).options, {}) == {**(expected or {}), **given}


def test_credentials_are_renewed_before_they_expire(
    unity: Unity, conf: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = NOW
    monkeypatch.setattr(catalog, "now_ms", lambda: now)
    place = location(conf, "topics/orders")

    def key() -> str:
        return (storage_options(place.options, {}) or {})["AWS_ACCESS_KEY_ID"]

    def vend(name: str, ms: int) -> None:
        unity.told = {"aws_temp_credentials": {**AWS, "access_key_id": name}, "expiration_time": str(now + ms)}

    vend("first", 4_000)
    assert key() == key() == "first"
    vend("second", 8_000)
    now += 2_999
    assert key() == "first"
    now += 1
    assert key() == "second"
    unity.failure = 503
    now += 3_800
    assert key() == "second", "the catalog is away, and the credentials are still valid"
    asked = len(unity.asked)
    now += 100
    assert (key(), len(unity.asked)) == ("second", asked), "it is not asked each time"
    now += 1_200
    with pytest.raises(CatalogAwayError, match=r"asked about main.lake.topic_orders, http:.* answers 503: .*not now"):
        key()
    unity.failure = None
    vend("third", 4_000)
    assert key() == "third"


def test_a_reader_opens_its_table_again_with_new_credentials(
    unity: Unity, conf: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a large file, which it would otherwise read on by an open file of the former ones."""
    now, looked, real = NOW, list[str](), Snapshot.open
    monkeypatch.setattr(catalog, "now_ms", lambda: now)
    monkeypatch.setattr(Snapshot, "open", lambda table, path: looked.append(path) or real(table, path))  # type: ignore[func-returns-value]
    monkeypatch.setattr(topics, "BUDGET", 1)
    monkeypatch.setattr(plan, "WINDOW_BYTES", 5_000)
    write(tmp_path / "managed", "uuid-1", [message(n, batch=1, queue=5, body=b"b" * 1_000) for n in range(20)])
    unity.told = {"aws_temp_credentials": AWS, "expiration_time": now + 4_000}
    reader, cursor, found = Topic(*location(conf, "topics/orders")), Cursor(), list[str]()
    before, files, windows = reader._table.delta, list[int](), 0
    while (window := reader.next({5: cursor})) is not None:
        found += window.rows["message_id"].to_pylist()
        cursor.join(window.ends[5])
        windows, now = windows + 1, now + 1_500
        files.append(sum(path.endswith(".parquet") for path in looked))
        unity.told = {"aws_temp_credentials": {**AWS, "access_key_id": str(windows)}, "expiration_time": now + 4_000}
    assert found == [f"m{n}" for n in range(20)]
    assert files[0] == files[1] < files[-1]
    assert reader._table.delta is not before


def test_a_table_that_was_made_again_elsewhere_is_not_read_on(
    unity: Unity, conf: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = NOW
    monkeypatch.setattr(catalog, "now_ms", lambda: now)
    monkeypatch.setattr(catalog, "_LOOK_AGAIN_S", -1.0)
    unity.told = {"aws_temp_credentials": AWS, "expiration_time": now + 1_000}
    reader = Topic(*location(conf, "topics/orders"))
    write(tmp_path / "managed", "uuid-2", [message(7, batch=0)])
    unity.tables["main.lake.topic_orders"] = f"file://{tmp_path}/managed/topics/uuid-2"
    assert location(conf, "topics/orders").uri.endswith("uuid-2")
    with pytest.raises(WarehouseError, match=r"main.lake.topic_orders was deleted and made again while it was read"):
        reader.next({0: Cursor()})
    assert Topic(*location(conf, "topics/orders")).queues() == {0}


def test_a_table_that_the_catalog_lacks_is_named(unity: Unity, conf: Config, tmp_path: Path) -> None:
    with pytest.raises(NoTableError, match=rf"topic_ordrs in the catalog: {unity.url} answers 404: .*; check"):
        next(commitlake.consume(conf, "ordrs", group="g", follow=False))
    settings = [f"--set={name}={value}" for name, value in unity.conf(receipts=str(tmp_path)).items()]
    told = CliRunner().invoke(app, ["tx", "list", *settings])
    assert "no coordinator of this version has run on the warehouse schema:main.lake: it has no table" in str(
        told.exception
    )
    assert "check `warehouse` and catalog.url" in str(told.exception)
    told = CliRunner().invoke(app, ["doctor", *settings])
    assert "there is no table at schema:main.lake, " in told.output


@pytest.mark.parametrize("given", ["dapi-hush", None])
def test_a_wrong_token_is_told_and_never_shown(
    unity: Unity, conf: Config, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    unity.token = "right"
    if given:
        monkeypatch.setenv("THE_TOKEN", given)
        conf = from_mapping(unity.conf(receipts=conf.receipts, **{"catalog.token": "env:THE_TOKEN"}))
    with pytest.raises(WarehouseError, match=r"answers 401: .*catalog.token, .*EXTERNAL USE SCHEMA") as caught:
        location(conf, "half")
    assert "dapi-hush" not in f"{caught.value} {conf!r} {conf.describe()}"


def test_a_token_is_sent_and_a_change_of_it_counts(unity: Unity, conf: Config, tmp_path: Path) -> None:
    file, unity.token = tmp_path / "token", "two"
    conf = from_mapping(unity.conf(receipts=conf.receipts, **{"catalog.token": f"file:{file}"}))
    file.write_text("one\n")
    with pytest.raises(WarehouseError, match="401"):
        read(conf)
    file.write_text("two\n")
    assert len(read(conf)) == 4


@pytest.mark.parametrize("text", ["hush\nhush", "hush\u20ac"])
def test_what_is_no_token_is_not_shown(unity: Unity, conf: Config, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("THE_TOKEN", text)
    with pytest.raises(ConfigError, match="what env:THE_TOKEN names is no token") as caught:
        location(from_mapping(unity.conf(**{"catalog.token": "env:THE_TOKEN"})), "half")
    assert "hush" not in str(caught.value)


def test_an_answer_that_leads_elsewhere_is_told_and_the_token_stays_here(
    unity: Unity, conf: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", "secret")
    with serving(Unity(tables=unity.tables)) as other:
        unity.redirects_to = other.url
        conf = from_mapping(unity.conf(**{"catalog.token": "env:THE_TOKEN"}))
        with pytest.raises(WarehouseError, match=rf"answers 302: go to {other.url}/tables/.*; check the URL"):
            location(conf, "topics/orders")
        assert (unity.tokens, other.tokens) == (["Bearer secret"], [])


def test_a_token_that_the_catalog_repeats_is_not_shown(
    unity: Unity, conf: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", "dapi-hush")
    monkeypatch.setattr(unity, "answer", lambda *_: (403, {"message": "bad\ntoken dapi-hush"}))
    conf = from_mapping(unity.conf(**{"catalog.token": "env:THE_TOKEN"}))
    with pytest.raises(WarehouseError, match=r"answers 403: .*bad.*token \*\*\*") as caught:
        location(conf, "half")
    assert "hush" not in str(caught.value)


def test_a_token_that_is_replaced_late_ends_nobody_who_has_valid_credentials(
    unity: Unity, conf: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, file, unity.token = NOW, tmp_path / "token", "one"
    monkeypatch.setattr(catalog, "now_ms", lambda: now)
    file.write_text("one")
    unity.told = {"aws_temp_credentials": AWS, "expiration_time": now + 4_000}
    place = location(from_mapping(unity.conf(**{"catalog.token": f"file:{file}"})), "topics/orders")
    assert storage_options(place.options, {}) == AS_OPTIONS
    unity.token, now = "two", now + 3_000
    assert storage_options(place.options, {}) == AS_OPTIONS
    assert "credentials of main.lake.topic_orders are not renewed, and still valid: " in caplog.text
    file.unlink()
    now += 500
    assert storage_options(place.options, {}) == AS_OPTIONS
    now += 500
    with pytest.raises(ConfigError, match=r"catalog.token: cannot read .*token"):
        storage_options(place.options, {})
    file.write_text("two")
    unity.told["expiration_time"] = now + 4_000
    assert storage_options(place.options, {}) == AS_OPTIONS


def test_a_view_is_refused(unity: Unity, conf: Config) -> None:
    unity.tables["main.lake.half"] = ""
    with pytest.raises(WarehouseError, match=r"names no place of main.lake.half; give a table, and not a view"):
        location(conf, "half")


def test_a_catalog_that_is_away_is_told(tmp_path: Path) -> None:
    with serving(Unity()) as gone:
        conf = from_mapping(gone.conf(receipts=str(tmp_path)))
    with pytest.raises(WarehouseError, match=r"about main.lake.topic_orders, http://.* does not answer: .*refused"):
        read(conf)


def test_an_answer_that_is_no_json_is_told(unity: Unity, conf: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unity, "answer", lambda *_: (200, ["no", "object"]))
    with pytest.raises(CatalogAwayError, match=r"about main.lake.half, .* gives no object of JSON: .*; check the URL"):
        location(conf, "half")


def test_a_place_that_deltalake_can_not_read_is_told(unity: Unity, conf: Config) -> None:
    unity.tables["main.lake.half"] = "dbfs:/user/hive/half"
    with pytest.raises(WarehouseError, match="dbfs:/user/hive/half can't be read here"):
        location(conf, "half")


def test_a_consumer_outlives_an_outage_of_the_catalog(
    unity: Unity, conf: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, found = NOW, list[str]()
    monkeypatch.setattr(catalog, "now_ms", lambda: now)
    unity.told = {"aws_temp_credentials": AWS, "expiration_time": now + 1_000}
    with running(
        commitlake.consume(conf, "orders", group="points", poll="50ms"), lambda each: found.append(each.message_id)
    ):
        wait_for(lambda: len(found) == 4)
        asked, unity.failure = len(unity.asked), 500
        now += 2_000
        wait_for(lambda: len(unity.asked) > asked)
        write(tmp_path / "managed", "uuid-1", [message(9, batch=1)])
        unity.failure = None
        unity.told = {"aws_temp_credentials": AWS, "expiration_time": LATE}
        wait_for(lambda: "m9" in found)


def test_questions_read_where_unity_catalog_says(unity: Unity, conf: Config) -> None:
    assert DeltaTable(unity.tables["main.lake.topic_orders"]).count() == 4
    with opened(conf) as tables:
        view = tables.topic("orders")
        assert tables.rows(f"SELECT count(*) AS n FROM {view}")["n"].to_pylist() == [4]
        assert tables.topic("ordrs") is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"catalog.token": "dapi123"}, r"catalog.token: \*\*\* is not allowed; allowed is env:NAME"),
        ({"catalog.url": "catalog.example.com/api"}, "catalog.url: .* allowed is https://HOST/PATH"),
        ({"catalog.url": "https://me:dapi123@example.com"}, r"catalog.url: .*\*\*\*.* without a user or password"),
        ({"catalog.url": "https://example.com/?token=dapi123"}, "catalog.url: .* allowed is https://HOST/PATH"),
        ({"catalog.url": "https://a/b", "catalog.location": "/a"}, "catalog.location and catalog.url are both given"),
        ({"catalog.tokn": "dapi123"}, r"unknown configuration key catalog.tokn; .*its value is \*\*\*"),
    ],
)
def test_a_bad_catalog_is_refused_and_no_token_shown(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        from_mapping(given)
    assert "dapi123" not in str(caught.value)


def test_what_the_catalog_says_of_an_unknown_error_is_told(unity: Unity, conf: Config) -> None:
    unity.failure = 400
    with pytest.raises(CommitLakeError, match=r"asked about main.lake.half, .* answers 400: .*not now"):
        location(conf, "half")


_APART_S = 0.1
_FEW = b'{"schema": "x"}'
_ANSWER = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n"
_SLOW = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 50),
    "body": (_ANSWER % (b"200 OK", 1_000), _FEW + b" " * 1_000),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 500),
    "a body of unknown length": (b"HTTP/1.0 200 OK\r\n\r\n", _FEW + b" " * 1_000),
}


@contextmanager
def dripping(at_once: bytes, then: bytes) -> Iterator[str]:
    """A server that sends the second part byte by byte; its URL."""
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as caller:
            caller.recv(10_000)
            caller.sendall(at_once)
            for byte in then:
                if ended.wait(_APART_S):
                    return
                caller.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()


def took_s(ask: Callable[[], object]) -> float:
    begun = time.monotonic()
    with pytest.raises(AnswerError) as told:
        ask()
    assert "timed out" in str(told.value) or "503" in str(told.value)
    return time.monotonic() - begun


@pytest.mark.parametrize("parts", _SLOW.values(), ids=_SLOW.keys())
def test_an_answer_byte_by_byte_is_given_up_in_time(parts: tuple[bytes, bytes]) -> None:
    with dripping(*parts) as url:
        assert 0.4 < took_s(lambda: asked(url, 0.5)) < 2


def test_an_error_byte_by_byte_is_told_in_time() -> None:
    with dripping(_ANSWER % (b"503 Busy", 1_000), b"." * 1_000) as url:
        assert took_s(lambda: asked(url, 0.5)) < 2


def test_an_answer_that_comes_slowly_and_in_time_is_taken() -> None:
    with dripping(_ANSWER % (b"200 OK", len(_FEW)), _FEW) as url:
        assert asked(url, 5) == {"schema": "x"}
