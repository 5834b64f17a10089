"""Rules that answer checks: what a rule may say, and what it decides on real tables."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support import databases, topic_table
from tests.support.databases import LiteDatabase
from tests.support.polling import wait_for
from tests.support.topic_table import half as row_of_half
from tests.support.topic_table import written

from commitlake.clients.delta.allowed_places import DEADLINE, TABLES
from commitlake.config import from_mapping
from commitlake.coordinator.resolving import database as database_rules
from commitlake.coordinator.resolving import resolve
from commitlake.coordinator.resolving.resolve import Resolver, by_database, by_row, decided
from commitlake.coordinator.resolving.rules import CheckRule, rule_of
from commitlake.errors import CommitLakeError, ConfigError, KafkaError
from commitlake.protocol.clock import BrokerClock
from commitlake.protocol.database_row import COMMITTED, CREATE, HANDLED, HANDLING, NAME, REVOKED, TABLE, created_by
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.postgresql import SYSTEM, TIMELINE, TRANSACTION, xact
from commitlake.reading.questions import views
from commitlake.reading.questions.tables import Tables, opened
from commitlake.tools import doctor
from commitlake.tools.findings import Diagnosis

CLOCK = BrokerClock()
GIVEN = {
    "table": "delta:/lake/orders",
    "match": "keys = id",
    "commit": "state = 'PAID'",
    "rollback": "state = 'CANCELLED' OR (absent AND age > '10m')",
}


def test_a_rule_becomes_sql_over_due_transactions_and_the_table() -> None:
    rule = rule_of("g", {**GIVEN, "match": "keys = id AND properties['shop'] = shop", "every": "5s"}, 6_000)
    assert rule.on == "d.keys = CAST(b.id AS VARCHAR) AND d.properties['shop'] = CAST(b.shop AS VARCHAR)"
    assert rule.commit == "CASE WHEN b.commitlake_here THEN b.state = 'PAID' END"
    here = "CASE WHEN b.commitlake_here THEN b.state = 'CANCELLED' END"
    assert rule.rollback == f"{here} OR ((b.commitlake_here IS NULL) AND d.age_ms > 600000)"
    assert rule.every_ms == 5_000


@pytest.mark.parametrize("condition", ["absent AND NOT age < '6s'", "NOT absent AND age > '1s'", "age >= '6s'"])
def test_a_condition_that_holds_for_no_young_transaction_without_a_row_is_one(condition: str) -> None:
    assert "age_ms" in rule_of("g", {**GIVEN, "rollback": condition}, 6_000).rollback


def test_rules_on_a_warehouse_that_only_spark_can_read_are_an_error_at_the_start() -> None:
    conf = from_mapping({"warehouse": "hdfs://lake/w", "checks": {"g": GIVEN}})
    with pytest.raises(ConfigError, match=r"checks: .*hdfs://lake/w can't be read here"):
        Resolver(conf, CLOCK)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollback": "absent"}, "it holds without a row at an age of 0ms"),
        ({"rollback": "absent OR age > '10m'"}, "it holds without a row at an age of 0ms"),
        ({"rollback": "absent AND age > '5s'"}, r"at an age of 5001ms, and before transaction.timeout \(6000ms\)"),
        ({"rollback": "NOT (absent AND age > '10m')"}, "it holds without a row at an age of 0ms"),
        ({"rollback": "age BETWEEN '2s' AND '3s' OR state = 'X'"}, "it holds without a row at an age of 2000ms"),
        ({"commit": "state = 'X' OR NOT (absent AND (age < '1s' OR age > '6s'))"}, "without a row at an age of 1000ms"),
        ({"rollback": "absent AND older(age, '10m')"}, "rollback: .* can't be read: Catalog Error"),
        ({"rollback": "age > 5"}, "give a text with a unit"),
        ({"rollback": "absent AND age > 'long'"}, "give a text with a unit"),
        ({"commit": "SELECT 1"}, "is no condition"),
        ({"commit": "state ="}, "can't be read"),
        ({"match": "id = keys"}, "write keys or message_id or transaction_id"),
        ({"match": "keys > id"}, "write keys or message_id or transaction_id"),
        ({"table": "jdbc:mysql://db"}, "'mysql:' is not allowed; give delta:PLACE"),
        ({"table": "jdbc:postgresql://db/shop"}, "names no table, or a password"),
        ({"table": "postgresql://u:p@db/shop?table=t"}, "names no table, or a password"),
        ({"table": "postgresql://db/shop?table=t&password=p"}, "names no table, or a password"),
        ({"table": "postgresql://u:pass/word@db/shop?table=t"}, "names no table, or a password"),
        ({"table": "postgresql://db/shop?table=t", "password": "open"}, "password: a secret is not allowed here"),
        ({"every": "often"}, "every: 'often' is not allowed"),
    ],
)
def test_what_a_rule_may_not_say_is_told(changes: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        rule_of("g", {**GIVEN, **changes}, 6_000)


def test_a_rule_of_a_table_needs_a_match_and_that_of_logs_none() -> None:
    with pytest.raises(ConfigError, match=r"checks.g.match: it is missing"):
        rule_of("g", {"table": "delta:x"}, 6_000)
    assert rule_of("g", {"table": "delta-log", "every": "5s"}, 6_000).every_ms == 5_000


DATABASE = "postgresql://db/shop"
WITHOUT_A_TABLE = r"write postgresql://HOST/DATABASE, mysql.* or sqlite:///FILE, without a table"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"match": "keys = id"}, "match: 'keys = id' is not allowed beside database"),
        ({"database": "db/shop"}, WITHOUT_A_TABLE),
        ({"database": f"{DATABASE}?table=orders"}, WITHOUT_A_TABLE),
        ({"database": "mysql+pymysql://shop:p@db/shop"}, WITHOUT_A_TABLE),
        ({"database": f"{DATABASE}?password=p"}, WITHOUT_A_TABLE),
        ({"database": "postgresql://shop:pass/word@db/shop"}, WITHOUT_A_TABLE),
        ({"password": "open"}, "password: a secret is not allowed here"),
        ({"every": "often"}, "every: 'often' is not allowed"),
    ],
)
def test_a_rule_of_a_database_needs_its_address_only(changes: dict[str, str], told: str) -> None:
    assert rule_of("g", {"database": f"jdbc:{DATABASE}"}, 6_000).database == DATABASE
    with pytest.raises(ConfigError, match=told):
        rule_of("g", {"database": DATABASE, **changes}, 6_000)


@pytest.mark.parametrize(
    "given",
    [
        {"g": {"match": "keys = id"}},
        {"g": {**GIVEN, "when": "now"}},
        {"g": {**GIVEN, "database": DATABASE}},
        "text",
        {"g": 1},
    ],
)
def test_a_map_of_rules_has_known_keys_only(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"checks: .* is not allowed; allowed is a map of producer groups"):
        from_mapping({"checks": given})


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Six transactions with a check out, one that was not checked, one of another group; half an hour old."""
    place = tmp_path / "warehouse"
    old = time.time_ns() // 1_000 - 30 * 60_000_000
    own = {"tags": None, "stored_at": old, "properties": [("shop", "1")]}
    groups = {"foreign": "other"}
    rows = [
        row_of_half(at, name, transaction_id=name, message_id=name, producer_group=groups.get(name, "g"), **own)
        for at, name in enumerate(["paid", "cancelled", "absent", "open", "both", "twice", "unchecked", "foreign"])
    ]
    written(place, "half", *rows)
    asked = {"queue": 0, "round": 0, "requested_at": old}
    numbers = {0: 2, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 7: 1}
    written(place, "checks", *({**asked, "half_offset": at, "check_no": no} for at, no in numbers.items()))
    for name in ("transactions", "reentries", "open_rows", "positions"):
        written(place, name)
    return place


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def decisions(warehouse: Path, given: dict[str, str]) -> dict[str, str]:
    """What the rule of the group g decides, by transaction."""
    (rule,) = resolver_of(warehouse, given).rules
    with opened(str(warehouse)) as tables:
        views.make_pending(tables)
        return {row["transaction_id"]: row["decision"] for row in decided(tables, rule, CLOCK.now_ms())}


def resolver_of(warehouse: Path, given: dict[str, str]) -> Resolver:
    return Resolver(from_mapping({"warehouse": str(warehouse), "checks": {"g": given}}), CLOCK)


def business(place: Path) -> str:
    rows = {
        "id": ["paid", "cancelled", "open", "both", "twice", "twice", "unchecked", "foreign"],
        "state": ["PAID", "CANCELLED", "NEW", "BOTH", "PAID", "NEW", "PAID", "PAID"],
    }
    write_deltalake(str(place), pa.table(rows))
    return f"delta:{place}"


def test_a_rule_decides_what_its_table_knows_and_leaves_the_rest(warehouse: Path, tmp_path: Path) -> None:
    given = {
        **GIVEN,
        "table": business(tmp_path / "orders"),
        "commit": "state IN ('PAID', 'BOTH')",
        "rollback": "state IN ('CANCELLED', 'BOTH') OR (absent AND age > '10m')",
    }
    (rule,) = resolver_of(warehouse, given).rules
    with opened(str(warehouse)) as tables:
        views.make_pending(tables)
        found = {
            row["transaction_id"]: (row["decision"], row["checks"]) for row in decided(tables, rule, CLOCK.now_ms())
        }
    assert found == {
        "paid": ("COMMIT", 2),
        "cancelled": ("ROLLBACK", 1),
        "absent": ("ROLLBACK", 1),
        "twice": ("COMMIT", 1),
    }


@pytest.mark.parametrize(
    "condition",
    [
        *("state IS NULL", "NOT state IS NOT NULL", "state IS DISTINCT FROM 'NEW'", "coalesce(state, '') = ''", "true"),
        "(state IS NULL OR id = 'x') AND age > '1m'",
    ],
)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_where_the_table_has_no_row_only_absent_and_age_hold(
    warehouse: Path, tmp_path: Path, condition: str, end: str
) -> None:
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": ["paid"], "state": pa.nulls(1, pa.string())}))
    given = {"table": f"delta:{tmp_path / 'orders'}", "match": "keys = id", end: condition}
    assert decisions(warehouse, given) == {"paid": end.upper()}


def test_a_row_that_the_table_deleted_by_a_vector_is_absent(warehouse: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "table": business(tmp_path / "orders")}
    topic_table.delete(tmp_path / "orders", [0])
    assert decisions(warehouse, given) == {
        "paid": "ROLLBACK",
        "cancelled": "ROLLBACK",
        "absent": "ROLLBACK",
        "twice": "COMMIT",
    }


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with databases.server() as address:
        databases.execute(
            address,
            "CREATE TYPE stage AS ENUM ('NEW', 'PAID', 'CANCELLED', 'BOTH')",
            'CREATE TABLE orders (id TEXT PRIMARY KEY, state stage, "Amount" NUMERIC(10, 2), note TEXT)',
            "INSERT INTO orders VALUES ('paid', 'PAID', 10.50), ('cancelled', 'CANCELLED', 1), ('open', 'NEW', 1), "
            "('both', 'BOTH', 11), ('twice', 'PAID', 10.49), ('unchecked', 'PAID', 20), ('foreign', 'PAID', 20)",
            *created_by().split("; "),
        )
        yield address


@pytest.fixture
def database(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its address, where the environment has the password."""
    monkeypatch.setenv("SHOP_PASSWORD", databases.PASSWORD)
    return server


def rule_of_database(address: str, **changes: str) -> dict[str, str]:
    return {
        **GIVEN,
        "table": f"jdbc:postgresql://{address}/postgres?table=public.orders",
        "commit": "state = 'PAID' AND \"Amount\" > 10.49",
        "user": "shop",
        "password": "env:SHOP_PASSWORD",
        **changes,
    }


def test_a_table_of_postgresql_decides_too(warehouse: Path, database: str) -> None:
    given = rule_of_database(database)
    assert decisions(warehouse, given) == {"paid": "COMMIT", "cancelled": "ROLLBACK", "absent": "ROLLBACK"}
    assert databases.PASSWORD not in from_mapping({"checks": {"g": given}}).describe()


def test_a_key_that_postgresql_can_not_hold_leaves_its_transaction_open_only(
    warehouse: Path, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    half = DeltaTable(str(warehouse / "half")).to_pyarrow_table()
    keys = [{"absent": "a\0b", "open": "x" * 9_000_000}.get(name, name) for name in half["keys"].to_pylist()]
    write_deltalake(str(warehouse / "half"), with_column(half, "keys", pa.array(keys)), mode="overwrite")
    caplog.set_level(logging.WARNING, logger="commitlake")
    found = decisions(warehouse, rule_of_database(database))
    assert found == {"paid": "COMMIT", "cancelled": "ROLLBACK", "open": "ROLLBACK"}
    (told,) = caplog.messages
    assert told.startswith("the transaction absent stays open: its key 'a\\x00b' has a NUL")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"commit": "paid = 1"}, "public.orders has no column paid; it has Amount, id, note, state"),
        ({"table": "postgresql://{}/postgres?table=nothing"}, 'relation "nothing" does not exist'),
        ({"password": "env:WRONG_PASSWORD"}, "password authentication failed"),
        ({"table": "postgresql://127.0.0.1:1/postgres?table=orders"}, "Connection refused"),
        ({"password": "env:NOT_SET"}, "checks.g.password: the environment variable NOT_SET is not set"),
    ],
)
def test_a_database_that_does_not_answer_is_told_without_secrets(
    warehouse: Path, database: str, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], told: str
) -> None:
    monkeypatch.setenv("WRONG_PASSWORD", "not the one")
    given = {name: text.format(database) for name, text in changes.items()}
    for ask in ("once", "look"):
        with pytest.raises(CommitLakeError) as refused:
            getattr(resolver_of(warehouse, rule_of_database(database, **given)), ask)()
        assert told in str(refused.value)
    shown = "".join(traceback.format_exception(refused.value))
    assert databases.PASSWORD not in shown
    assert "not the one" not in shown


def test_a_database_decides_its_own_transactions_and_a_bad_id_harms_no_other(
    warehouse: Path, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with databases.connected(database) as running, running.cursor() as cursor:
        cursor.execute(take := f"SELECT {SYSTEM}, {TIMELINE}, pg_current_xact_id()::text")
        committed = xact(*cursor.fetchone())
        running.commit()
        cursor.execute(take)
        still_runs = xact(*cursor.fetchone())
        told = {
            "paid": str(committed),
            "open": str(still_runs),
            "cancelled": str(still_runs._replace(xid=1 << 40)),
            "absent": f"{still_runs}x",
            "both": str(still_runs._replace(timeline=2)),
            "twice": str(still_runs._replace(xid=3)),
        }
        naming(warehouse, TRANSACTION, told)
        given = {"database": f"postgresql://{database}/postgres", "user": "shop", "password": "env:SHOP_PASSWORD"}
        resolver = resolver_of(warehouse, given)
        caplog.set_level(logging.WARNING, logger="commitlake")
        with opened(str(warehouse)) as tables:
            views.make_pending(tables)
            found = by_database(tables, resolver.rules[0], CLOCK.now_ms())
    assert {row["transaction_id"]: row["decision"] for row in found} == {"paid": "COMMIT"}
    reasons = {
        "absent": "is not allowed; allowed is SYSTEM/TIMELINE/XID",
        "open": f"the database says that transaction {still_runs.xid} is in progress",
        "cancelled": f"the database says that transaction {1 << 40} is in progress",
        "both": "another timeline",
        "twice": "the server no longer knows it",
    }
    assert len(caplog.messages) == len(reasons)
    for name, reason in reasons.items():
        assert any(f"transaction {name} stays open" in each and reason in each for each in caplog.messages)


def naming(warehouse: Path, name: str, told: dict[str, str]) -> None:
    """Half messages with a property, by transaction."""
    half = DeltaTable(str(warehouse / "half")).to_pyarrow_table()
    properties = [[(name, told[each])] if each in told else [] for each in half["transaction_id"].to_pylist()]
    column = pa.array(properties, pa.map_(pa.string(), pa.string()))
    write_deltalake(str(warehouse / "half"), with_column(half, "properties", column), mode="overwrite")


def by_rows(warehouse: Path, place: Path, *, only_looks: bool = False) -> dict[str, str]:
    """What the rule of the group g decides by the rows of a SQLite database."""
    (rule,) = resolver_of(warehouse, {"database": f"sqlite:///{place}?timeout=0.1"}).rules
    with opened(str(warehouse)) as tables:
        views.make_pending(tables)
        found = by_row(tables, rule, CLOCK.now_ms(), only_looks=only_looks)
    return {row["transaction_id"]: row["decision"] for row in found}


@pytest.fixture
def shop(warehouse: Path, tmp_path: Path) -> Iterator[LiteDatabase]:
    """A database whose rows are named by the transactions of the warehouse."""
    states = {"paid": COMMITTED, "cancelled": REVOKED, "open": "OPEN 1", "foreign": COMMITTED}
    rows = [f"INSERT INTO {TABLE} VALUES ('{name}', '{state}', 0)" for name, state in states.items()]
    own = f"INSERT INTO {TABLE} VALUES ('database', 'shop', 0)"
    made = LiteDatabase(tmp_path / "shop.db", "sqlite3", CREATE, own, *rows, timeout_s=5)
    named = ("paid", "cancelled", "absent", "open", "unchecked", "foreign")
    naming(warehouse, NAME, {name: f"shop/{name}" for name in named} | {"both": "shop", "twice": "copy/paid"})
    with closing(made.made):
        yield made


def test_rows_and_tombstones_decide_in_any_database(
    warehouse: Path, shop: LiteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="commitlake")
    states = shop.column(f"SELECT id || state FROM {TABLE}")
    assert by_rows(warehouse, shop.place, only_looks=True) == {"paid": "COMMIT", "cancelled": "ROLLBACK"}
    assert shop.column(f"SELECT id || state FROM {TABLE}") == states
    wanted = {"paid": "COMMIT", "cancelled": "ROLLBACK", "absent": "ROLLBACK", "open": "ROLLBACK"}
    for _ in range(2):
        assert by_rows(warehouse, shop.place) == wanted
    revoked = shop.column(f"SELECT id FROM {TABLE} WHERE state = '{REVOKED}' ORDER BY id")
    assert revoked == ["absent", "cancelled", "open"]
    assert any("both stays open" in each and "allowed is <database>/<id>" in each for each in caplog.messages)
    assert any("twice stays open: its row is in the database copy" in each for each in caplog.messages)


def test_an_open_local_transaction_keeps_its_own_answer_only_and_an_error_is_none(
    warehouse: Path, shop: LiteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite has one writer, so nothing is answered while one is open."""
    shop.run(f"INSERT INTO {TABLE} VALUES ('absent', 'OPEN 1', 0)")
    begun = time.monotonic()
    assert by_rows(warehouse, shop.place) == {}
    assert time.monotonic() - begun < 10
    assert any("absent stays open" in each and "locked" in each for each in caplog.messages), "it is half an hour old"
    shop.run(f"UPDATE {TABLE} SET state = '{COMMITTED}' WHERE id = 'absent'")
    shop.made.commit()
    assert by_rows(warehouse, shop.place)["absent"] == "COMMIT"


def test_a_database_without_the_table_or_with_another_name_answers_nothing(
    warehouse: Path, shop: LiteDatabase, tmp_path: Path
) -> None:
    with pytest.raises(CommitLakeError, match=r"no such table.*commitlake database create"):
        by_rows(warehouse, tmp_path / "other.db")
    shop.sql(f"UPDATE {TABLE} SET state = 'test' WHERE id = 'database'")
    before = shop.column(f"SELECT id FROM {TABLE}")
    assert by_rows(warehouse, shop.place) == {}
    assert shop.column(f"SELECT id FROM {TABLE}") == before


def test_a_message_that_is_older_than_rows_are_kept_gets_no_tombstone(warehouse: Path, shop: LiteDatabase) -> None:
    old = DeltaTable(str(warehouse / "half")).to_pyarrow_table()
    stored = pa.array([time.time_ns() // 1_000 - 31 * 86_400_000_000] * 8, old.schema.field("stored_at").type)
    write_deltalake(str(warehouse / "half"), with_column(old, "stored_at", stored), mode="overwrite")
    assert by_rows(warehouse, shop.place) == {"paid": "COMMIT", "cancelled": "ROLLBACK", "open": "ROLLBACK"}
    assert shop.column(f"SELECT id FROM {TABLE} WHERE id = 'absent'") == []


def test_a_rule_that_fails_or_waits_stops_no_other_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = {**GIVEN, "every": "1ms"}
    conf = from_mapping({"warehouse": str(tmp_path), "checks": {"ill": given, "waits": given, "well": given}})
    resolver, stop, seen = Resolver(conf, CLOCK), threading.Event(), Counter[str]()

    def once(rules: list[CheckRule]) -> None:
        group = rules[0].group
        seen[group] += 1
        if group == "waits":
            assert stop.wait(60)
        if seen["well"] >= 2 and seen["ill"] >= 2:
            stop.set()
        if group == "ill":
            raise duckdb.IOException("No files found")

    monkeypatch.setattr(resolver, "once", once)
    caplog.set_level(logging.WARNING, logger="commitlake")
    resolver.run(stop)
    assert min(seen["ill"], seen["well"]) >= 2
    assert set(caplog.messages) == {"the rule checks.ill answers nothing now: No files found"}


def test_rules_that_look_together_work_out_what_is_open_once(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**GIVEN, "table": business(tmp_path / "orders")}
    resolver = Resolver(from_mapping({"warehouse": str(warehouse), "checks": dict.fromkeys("gabc", given)}), CLOCK)
    stop, made, seen = threading.Event(), Counter[str](), dict[str, int]()

    def make(tables: Tables, of: Callable[[Tables], None] = views.make_pending) -> None:
        made["times"] += 1
        of(tables)

    def send(rule: CheckRule, rows: list[Any]) -> Counter[str]:
        seen[rule.group] = len(rows)
        if len(seen) == 4:
            stop.set()
        return Counter()

    monkeypatch.setattr(views, "make_pending", make)
    monkeypatch.setattr(resolver, "_send", send)
    resolver.run(stop)
    assert made["times"] < len(resolver.rules), "a busy machine may take a second between two of them"
    assert {group for group, count in seen.items() if count} == {"g"}


def test_a_table_that_somebody_has_locked_is_told(
    warehouse: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database_rules._PATIENCE, "options", "-c lock_timeout=200")
    resolver = resolver_of(warehouse, rule_of_database(database))
    with databases.connected(database) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLE orders")
        with pytest.raises(CommitLakeError, match="lock timeout"):
            resolver.once()


@pytest.mark.parametrize(("password", "warnings"), [(None, 1), (databases.PASSWORD, 0)], ids=["unset", "right"])
def test_a_database_is_asked_at_the_start_when_nothing_is_due(
    tmp_path: Path,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    password: str | None,
    warnings: int,
) -> None:
    if password:
        monkeypatch.setenv("SHOP_PASSWORD", password)
    given = {"database": f"postgresql://{server}/postgres", "user": "shop", "password": "env:SHOP_PASSWORD"}
    ended = threading.Event()
    ended.set()
    caplog.set_level(logging.WARNING, logger="commitlake")
    resolver_of(tmp_path, given).run(ended)
    told = "the rule checks.g answers nothing now: checks.g.password: the environment variable SHOP_PASSWORD is not set"
    assert [each.startswith(told) for each in caplog.messages] == [True] * warnings


def test_a_start_tells_that_a_database_of_postgresql_has_no_table_for_rows(
    tmp_path: Path, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"database": f"postgresql://{database}/template1", "user": "shop", "password": "env:SHOP_PASSWORD"}
    ended = threading.Event()
    ended.set()
    caplog.set_level(logging.WARNING, logger="commitlake")
    resolver_of(tmp_path, given).run(ended)
    assert [f'relation "{TABLE}" does not exist' in each for each in caplog.messages] == [True]


def test_a_rule_deletes_old_rows_of_producers_and_a_failure_is_told_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resolve, "_FIRST_TIDY_S", 0.01)
    caplog.set_level(logging.INFO, logger="commitlake")
    place, month = tmp_path / "shop.db", time.time_ns() // 10**6 - 31 * DAY_MS
    rows = [("a", COMMITTED, month - 1), ("b", REVOKED, 1), ("c", "OPEN 1", 1), ("d", HANDLED, 1), ("e", HANDLING, 1)]
    with closing(sqlite3.connect(place)) as database:
        database.executescript(created_by())
        database.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", [*rows, ("f", COMMITTED, month + DAY_MS)])
        database.commit()
        given = {"g": {"database": f"sqlite:///{place}"}, "h": {"database": f"sqlite:///{tmp_path}/other.db"}}
        stop = threading.Event()
        ahead = BrokerClock()
        ahead.set(time.time_ns() // 10**6 + 60 * DAY_MS)  # a leader of Kafka whose clock is wrong makes no row old
        running = threading.Thread(
            target=Resolver(from_mapping({"warehouse": str(tmp_path), "checks": given}), ahead).run, args=[stop]
        )
        running.start()
        wait_for(lambda: "stay" in caplog.text)
        stop.set()
        running.join()
        assert [name for (name,) in database.execute(f"SELECT id FROM {TABLE} ORDER BY id")] == [
            "d", "database", "e", "f",
        ]  # fmt: skip
    told = [each for each in caplog.messages if "old rows" in each]
    assert told[0] == f"old rows of {TABLE} deleted by the rule checks.g: 3"
    assert re.match(f"old rows of {TABLE} stay: checks.h: no such table.*; let the user of checks.h DELETE", told[1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"commit": "paid = 1"}, "Binder Error: .*paid.*compare columns"),
        ({}, "a table feature that is not read here: variantType"),
    ],
)
def test_a_table_that_a_rule_can_not_read_is_told_when_nothing_is_due(
    warehouse: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, str], told: str
) -> None:
    given = {**GIVEN, "table": business(tmp_path / "orders"), **change}
    if not change:
        topic_table.require(tmp_path / "orders", "variantType")
    stop = threading.Event()
    caplog.set_level(logging.WARNING, logger="commitlake")
    threading.Timer(1.2, stop.set).start()
    Resolver(from_mapping({"warehouse": str(warehouse), "checks": {"nobody": given}}), CLOCK).run(stop)
    assert len(caplog.messages) == 1
    assert re.search(f"the rule checks.nobody answers nothing now: .*{told}", caplog.messages[0])


def test_an_answer_is_sent_once_but_again_when_that_failed(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**GIVEN, "table": business(tmp_path / "orders")}
    resolver = resolver_of(warehouse, given)
    sends: list[int] = []

    def send(rule: CheckRule, rows: list[Any]) -> Counter[str]:
        sends.append(len(rows))
        if len(sends) == 1:
            raise KafkaError("not acknowledged")
        return Counter()

    monkeypatch.setattr(resolver, "_send", send)
    with pytest.raises(KafkaError):
        resolver.once()
    resolver.once()
    resolver.once()
    assert sends == [4, 4, 0]


def test_the_doctor_asks_each_rule_and_sends_nothing(warehouse: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "table": business(tmp_path / "orders")}
    found = []
    for rule in (given, {**given, "commit": "paid = 1"}, {**given, "table": f"delta:{tmp_path}/nowhere"}):
        conf = from_mapping({"warehouse": str(warehouse), "checks": {"g": rule}})
        with opened(conf.warehouse) as tables:
            try:
                found.append(doctor._rules(tables, conf))
            except CommitLakeError as error:  # as `examine` takes it
                found.append(Diagnosis("rules", False, str(error)))
    assert [each.is_well for each in found] == [True, False, False]
    assert found[0].detail == "g answers 4 now"
    assert re.match(r"checks.g: Binder Error.*paid.*compare columns that delta:", found[1].detail)
    with pytest.raises(ConfigError, match="compare columns"):
        resolver_of(warehouse, {**given, "commit": "paid = 1"}).once()
    assert "nowhere" in found[2].detail


@pytest.mark.parametrize("kind", ["table", "delta-log"])
def test_a_driver_s_clock_that_is_a_day_ahead_decides_nothing(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock, now = BrokerClock(), time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 86_400 * 10**9)
    place = business(tmp_path / "orders").removeprefix("delta:")
    given: dict[str, Any] = {**GIVEN, "table": f"delta:{place}", "commit": "false", "rollback": "absent AND age > '1h'"}
    if kind == "delta-log":
        given = {"table": kind, "places": [str(tmp_path)]}
        half = DeltaTable(str(warehouse / "half")).to_pyarrow_table()
        said = [(TABLES, json.dumps([place])), (DEADLINE, str(now // 10**6 + 3_600_000))]
        ids = pa.array([f"commitlake-tx-{number}" for number in range(8)])
        column = pa.array([said] * 8, pa.map_(pa.string(), pa.string()))
        half = with_column(with_column(half, "transaction_id", ids), "properties", column)
        write_deltalake(str(warehouse / "half"), half, mode="overwrite")
    conf = from_mapping({"warehouse": str(warehouse), "checks": {"g": given}})
    with opened(conf.warehouse) as tables:  # the doctor has only the clock of its machine, and writes nothing
        assert doctor._rules(tables, conf).is_well
    resolver = Resolver(conf, clock)
    sent: list[Any] = []

    def send(_: CheckRule, rows: list[Any]) -> Counter[str]:
        sent.extend(rows)
        return Counter()

    monkeypatch.setattr(resolver, "_send", send)
    resolver.once()
    assert sent == []
    clock.set(now // 10**6 + 86_400_000)
    resolver.once()
    assert {row["decision"] for row in sent} == {"ROLLBACK"}
