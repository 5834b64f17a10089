"""Answers checks by rules: one join for all due transactions, then an op for each decision.

An op answers the check that is out, as an instance of the producer group would. The coordinator decides by its own
rules, so the same answer twice is harmless. After a kill anywhere the next look sends the missing answers.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from commitlake.clients.delta import marks
from commitlake.clients.delta.allowed_places import DEADLINE, DELTA_LOG, TABLES, AllowedPlaces, deadline_of, places_of
from commitlake.clients.proof_rows import ProofRows, opened_rows
from commitlake.config import Config
from commitlake.config.terminal import printable
from commitlake.coordinator.resolving.rules import POSTGRESQL, CheckRule, rule_of
from commitlake.errors import ConfigError, RecordError, UndecidedError, WarehouseError
from commitlake.kafka.admin_client import many_records
from commitlake.protocol import wire
from commitlake.protocol.clock import BrokerClock, now_ms
from commitlake.protocol.database_row import NAME, TABLE, row_name_of
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import OP
from commitlake.protocol.postgresql import IN_PROGRESS, TRANSACTION, judged, xact_of
from commitlake.reading.catalog import check_readable
from commitlake.reading.questions import views
from commitlake.reading.questions.tables import Tables, escaped, opened

log = logging.getLogger(__name__)

T = TypeVar("T")

_DUE = "(SELECT * FROM pending WHERE producer_group = $group AND checks > 0)"
_BY_LOG = f"""
SELECT transaction_id, queue, queue_offset, round, checks,
       properties[$tables] AS places, coalesce(properties[$deadline], '0') AS deadline
FROM {_DUE} d WHERE properties[$tables] IS NOT NULL
"""
_BY_DATABASE = f"""
SELECT transaction_id, queue, queue_offset, round, checks, {{now}} - epoch_ms(stored_at) AS age_ms,
       properties[$property] AS named
FROM {_DUE} d WHERE properties[$property] IS NOT NULL
"""
_DECISIONS = """
SELECT transaction_id, queue, queue_offset, round, checks,
       bool_or(coalesce({commit}, false)) AS commits, bool_or(coalesce({rollback}, false)) AS rolls_back
FROM (SELECT *, {now} - epoch_ms(stored_at) AS age_ms FROM {due} d WHERE {fits}) d
LEFT JOIN (SELECT *, true AS commitlake_here FROM {table}) b ON {on}
GROUP BY ALL
"""
_PENDING = """
SELECT transaction_id, producer_group, queue, queue_offset, round, checks, message_id, keys, properties, stored_at
FROM pending WHERE checks > 0 AND producer_group IN (SELECT unnest($groups))
"""
_SHARED_S = 1.0
_FIRST_TIDY_S = 600.0
"""A coordinator that is started each day tidies too; until then Kafka's time is known, and a start has other work."""
_LONG_MS = 10 * 60_000
"""After so long a warning says that a transaction of a database is still in progress."""
NOT_OURS = (
    f"its deadline is over, and its id does not begin with {marks.PREFIX}, so nothing is written to its tables; "
    "end it with commitlake tx commit or rollback"
)
_STILL_RUNS = (
    "the database says that transaction {xid} is in progress, for 10 minutes or more, or never had it; look for it in "
    "backend_xid of pg_stat_activity and in pg_prepared_xacts, and set idle_in_transaction_session_timeout"
)


class Resolver:
    """Answers the checks of the groups that have a rule.

    Raises:
        ConfigError: a rule can't be used, or the warehouse can't be read without Spark.
        ModuleNotFoundError: a rule needs a module that is an extra.
    """

    def __init__(self, config: Config, clock: BrokerClock) -> None:
        self._config, self._clock = config, clock
        try:
            check_readable(config)
        except WarehouseError as error:
            msg = f"checks: rules need a warehouse that is read without Spark: {error}; or leave the key out"
            raise ConfigError(msg) from error
        timeout = config.transaction.timeout_ms
        self.rules = [rule_of(group, given, timeout) for group, given in config.checks.items()]
        logs = [rule for rule in self.rules if rule.table == DELTA_LOG]
        self._allowed = {rule.group: AllowedPlaces(config, rule.group, rule.places) for rule in logs}
        self._lock, self._looked_at = threading.Lock(), 0.0
        self._pending: pa.Table | None = None
        self._answered: dict[str, set[str]] = {rule.group: set() for rule in self.rules}
        if any(rule.database for rule in self.rules):
            importlib.import_module("sqlalchemy")
        if any(rule.needs_postgresql for rule in self.rules):
            importlib.import_module("commitlake.coordinator.resolving.database")

    def once(self, rules: Iterable[CheckRule] | None = None) -> Counter[str]:
        """Answer all checks that rules decide now; return how many answers were COMMIT and ROLLBACK."""
        sent: Counter[str] = Counter()
        with self._tables() as tables:
            for rule in self.rules if rules is None else rules:
                found = self._found(tables, rule)
                # While a coordinator processes many answers, their checks look open: each answer is sent once.
                before, ids = self._answered[rule.group], {_check_id(row) for row in found}
                sent += self._send(rule, [row for row in found if _check_id(row) not in before])
                self._answered[rule.group] = ids  # only now: answers that failed are sent again
        return sent

    def look(self) -> dict[str, int]:
        """How many answers each rule would give now. None is sent, and nothing is written to a table's log."""
        with self._tables() as tables:
            for rule in self.rules:
                if rule.database:
                    _ask_nothing(rule)
            return {rule.group: len(self._found(tables, rule, only_looks=True)) for rule in self.rules}

    @contextmanager
    def _tables(self) -> Iterator[Tables]:
        """The tables, with the pending transactions: worked out once for all rules that look within a second."""
        with self._lock:
            if self._pending is None or time.monotonic() - self._looked_at > _SHARED_S:
                with opened(self._config) as tables:
                    views.make_pending(tables)
                    self._pending = tables.rows(_PENDING, groups=[rule.group for rule in self.rules])
                self._looked_at = time.monotonic()
            pending = self._pending
        with opened(self._config) as tables:
            tables.db.register("pending", pending)
            yield tables

    def _found(self, tables: Tables, rule: CheckRule, *, only_looks: bool = False) -> list[Mapping[str, Any]]:
        now = self._clock.now_ms()
        if rule.database:
            by_xid = by_database(tables, rule, now) if rule.needs_postgresql else []
            return [*by_xid, *by_row(tables, rule, now, only_looks=only_looks)]
        if rule.table == DELTA_LOG:
            return by_log(tables, rule, self._allowed[rule.group], now, only_looks=only_looks)
        return decided(tables, rule, now)

    def run(self, stop: threading.Event) -> None:
        """Run each rule at its own interval until `stop` is set; in threads, as one may wait for a database."""
        works = [(f"rule-{rule.group}", partial(self._serve, rule, stop)) for rule in self.rules]
        works.append(("rules-tidy", partial(self._tidy, stop)))
        threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, rule: CheckRule, stop: threading.Event) -> None:
        if rule.database:  # else it is asked only for a due check, and a wrong login is reported minutes later
            self._try(rule, partial(_ask_nothing, rule))
        wait_s = 0.5
        while not stop.wait(wait_s):
            self._try(rule, partial(self.once, [rule]))
            wait_s = rule.every_ms / 1_000

    def _tidy(self, stop: threading.Event) -> None:
        """Deletes rows that no check needs any more once a day, beside the rules: among millions it takes minutes."""
        wait_s = _FIRST_TIDY_S
        while not stop.wait(wait_s):
            for rule in self.rules:
                if rule.database:
                    tidy(rule, min(self._clock.now_ms(), now_ms()))  # old by both: a clock may be ahead for minutes
            wait_s = DAY_MS / 1_000

    @staticmethod
    def _try(rule: CheckRule, work: Callable[[], object]) -> None:
        """Logs every failure, for the next try: a file that maintenance has removed, a database that is away."""
        try:
            work()
        except Exception as error:  # if the thread ended, the rule would never answer again
            log.warning("the rule checks.%s answers nothing now: %s", rule.group, error)

    def _send(self, rule: CheckRule, rows: list[Mapping[str, Any]]) -> Counter[str]:
        sent: Counter[str] = Counter()
        if not rows:
            return sent
        with many_records(self._config.kafka) as send:
            for row in rows:
                record = wire.encode_op(_answer(rule, row))
                topic = self._config.kafka.topic(OP)
                send(topic, key=record.key, value=record.value, partition=row["queue"])
                sent[row["decision"]] += 1
        log.info("%s by the rule checks.%s", dict(sent), rule.group)
        return sent


def decided(tables: Tables, rule: CheckRule, now: int) -> list[Mapping[str, Any]]:
    """The transactions that a rule decides, with their decision. When both conditions hold, the rule decides nothing.

    Ages count up to `now` (ms since epoch, UTC), in all functions here.

    Raises:
        ConfigError: the table has no such column.
    """
    try:
        sql = _DECISIONS.format(
            commit=rule.commit, rollback=rule.rollback, on=rule.on, table=_table(tables, rule), now=now, due=_DUE,
            fits=_fits(rule),
        )  # fmt: skip
        rows = tables.rows(sql, group=rule.group).to_pylist()
    except duckdb.Error as error:
        msg = f"checks.{rule.group}: {str(error).splitlines()[0]}; compare columns that {rule.table} has"
        raise ConfigError(msg) from error
    one = [row for row in rows if row["commits"] != row["rolls_back"]]
    return [{**row, "decision": "COMMIT" if row["commits"] else "ROLLBACK"} for row in one]


def by_log(
    tables: Tables, rule: CheckRule, allowed: AllowedPlaces, now: int, *, only_looks: bool = False
) -> list[Mapping[str, Any]]:
    """The transactions of `commitlake.delta_transaction` that the logs of their tables decide.

    With `only_looks` no transaction is ended for its deadline: the caller has another clock than the coordinator.
    """
    found: list[Mapping[str, Any]] = []
    for row in tables.rows(_BY_LOG, group=rule.group, tables=TABLES, deadline=DEADLINE).to_pylist():
        try:
            is_over = now > deadline_of(row["deadline"]) and not only_looks
            places = [allowed.check(place) for place in places_of(row["places"])]
            decision = marks.decision(places, row["transaction_id"], is_over, only_looks=only_looks)
            if decision is None and is_over:
                _warn_open(row["transaction_id"], NOT_OURS)
        except Exception as error:  # a failure of one must not keep the others from an answer
            _warn_open(row["transaction_id"], str(error) or type(error).__name__)
            continue
        if decision is not None:
            found.append({**row, "decision": decision})
    return found


def by_database(tables: Tables, rule: CheckRule, now: int) -> list[Mapping[str, Any]]:
    """The transactions of `begin_transaction(database=...)` whose end the database knows.

    Raises:
        DatabaseError: the database refuses, or is out of reach.
    """
    from commitlake.coordinator.resolving.database import answers

    asked = _asked(tables, rule, now, TRANSACTION, xact_of)
    told = answers(rule, {xact.xid for _, xact in asked}) if asked else {}
    found: list[Mapping[str, Any]] = []
    for row, xact in asked:
        decision, reason = judged(xact, told[xact.xid])
        if decision is not None:
            found.append({**row, "decision": decision})
        elif reason != IN_PROGRESS:
            _warn_open(row["transaction_id"], reason)
        elif row["age_ms"] > _LONG_MS:
            _warn_open(row["transaction_id"], _STILL_RUNS.format(xid=xact.xid))
    return found


def by_row(tables: Tables, rule: CheckRule, now: int, *, only_looks: bool = False) -> list[Mapping[str, Any]]:
    """The transactions of `begin_transaction(database=...)` that a row decides, or with its tombstone, in the database.

    With `only_looks` no tombstone is inserted.

    Raises:
        DatabaseError: the database refuses, or is out of reach.
        ProducerError: it has no table for the rows.
    """
    asked = _asked(tables, rule, now, NAME, row_name_of)
    if not asked:
        return []
    with _opened(rule) as rows:
        told = rows.decide_all({name: row["age_ms"] for row, name in asked}, only_looks=only_looks)
    for row, name in asked:
        is_long = row["age_ms"] > _LONG_MS  # until then it may just be open
        if isinstance(why := told.get(name), UndecidedError) or (is_long and isinstance(why, Exception)):
            _warn_open(row["transaction_id"], str(why))
    return [{**row, "decision": told[name]} for row, name in asked if isinstance(told.get(name), str)]


def tidy(rule: CheckRule, now: int) -> None:
    """Delete the producers' rows of 31 days; a failure is logged, and tried again a day later."""
    try:
        with _opened(rule) as rows:
            count = rows.tidy(now=now, only_proofs=True)
    except Exception as error:  # the rule answers all the same
        told = "old rows of %s stay: %s; let the user of checks.%s DELETE, or run commitlake database tidy"
        log.warning(told, TABLE, error, rule.group)
    else:
        log.info("old rows of %s deleted by the rule checks.%s: %d", TABLE, rule.group, count)


def _asked(
    tables: Tables, rule: CheckRule, now: int, name: str, read: Callable[[str], T]
) -> list[tuple[Mapping[str, Any], T]]:
    """The group's transactions with the property `name`, and what it says; a wrong one is warned of."""
    found: list[tuple[Mapping[str, Any], T]] = []
    for row in tables.rows(_BY_DATABASE.format(now=now), group=rule.group, property=name).to_pylist():
        try:
            found.append((row, read(row["named"])))
        except RecordError as error:
            _warn_open(row["transaction_id"], str(error))
    return found


def _opened(rule: CheckRule) -> AbstractContextManager[ProofRows]:
    return opened_rows(f"checks.{rule.group}", rule.database, rule.user, rule.password)


def _ask_nothing(rule: CheckRule) -> None:
    if rule.needs_postgresql:
        from commitlake.coordinator.resolving.database import answers

        answers(rule, ())
    with _opened(rule) as rows:
        rows.database()


def _table(tables: Tables, rule: CheckRule) -> str:
    """The business table, as DuckDB's SQL names it."""
    if rule.table.startswith(POSTGRESQL):
        from commitlake.coordinator.resolving.database import matched

        _warn_unfit(tables, rule)
        keys = ", ".join(f"{left} AS k{number}" for number, (left, _) in enumerate(rule.match))
        due = tables.rows(f"SELECT DISTINCT {keys} FROM {_DUE} d WHERE {_fits(rule)}", group=rule.group)
        tables.db.register("matched", matched(rule, due))
        return "matched"
    kind, _, place = rule.table.partition(":")
    if kind != "delta":
        return f"read_parquet('{escaped(place)}')"
    return tables.outside(place, {*(right for _, right in rule.match), *rule.columns})


def _fits(rule: CheckRule) -> str:
    """SQL over `d`: whether the rule's table can hold the keys. For one key with a NUL, PostgreSQL refuses all keys."""
    if not rule.table.startswith(POSTGRESQL):
        return "true"
    return " AND ".join(f"NOT coalesce(contains({left}, chr(0)), false)" for left, _ in rule.match)


def _warn_unfit(tables: Tables, rule: CheckRule) -> None:
    key = f"concat_ws(' ', {', '.join(left for left, _ in rule.match)})"
    sql = f"SELECT transaction_id, left({key}, 80) AS key FROM {_DUE} d WHERE NOT ({_fits(rule)})"
    for row in tables.rows(sql, group=rule.group).to_pylist():
        _warn_open(row["transaction_id"], f"its key {row['key']!r} has a NUL, which PostgreSQL can't hold")


def _warn_open(transaction_id: str, reason: str) -> None:
    """Warns in one short line: a reason may quote a producer's text."""
    told = printable(" ".join(reason.split())[:300])
    log.warning("the transaction %s stays open: %s", printable(transaction_id), told)


def _check_id(row: Mapping[str, Any]) -> str:
    return f"{Position(row['queue'], row['queue_offset'])}-{row['round']}-{row['checks']}"


def _answer(rule: CheckRule, row: Mapping[str, Any]) -> wire.OpRecord:
    first = Position(row["queue"], row["queue_offset"])
    return wire.OpRecord(
        transaction_id=row["transaction_id"],
        producer_group=rule.group,
        decision=row["decision"],
        half_messages=(first,),
        from_check=True,
        check_id=_check_id(row),
        remark=f"by the rule checks.{rule.group} of the coordinator",
    )
