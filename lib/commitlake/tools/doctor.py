"""Whether a warehouse and its Kafka are well: one finding for each thing looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import duckdb
import pyarrow.compute as pc

from commitlake.config import Config
from commitlake.config.terminal import counted
from commitlake.errors import CommitLakeError
from commitlake.kafka import topics
from commitlake.kafka.admin_client import connect
from commitlake.kafka.held_back import held_back
from commitlake.protocol.clock import BrokerClock, now_ms
from commitlake.protocol.kafka_topics import LANDED
from commitlake.protocol.states import DUPLICATE_OF
from commitlake.reading.questions import liveness, overview
from commitlake.reading.questions.tables import Tables, opened
from commitlake.tools import storage

_MOST_LAG = 100_000
_MOST_FILES = 2_000
_DAY_MS = 86_400_000
_LANDED = """
SELECT o.source AS source, o."partition" AS queue, o.next AS next FROM (
    SELECT unnest(offsets) AS o FROM positions WHERE landing_id = (SELECT max(landing_id) FROM positions))
"""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        what: the thing.
        is_well: whether it is as it should be.
        detail: what was found, and what to do where it is not well.
    """

    what: str
    is_well: bool
    detail: str


def examine(config: Config) -> Iterator[Diagnosis]:
    """Look at everything; what can't be looked at is a finding too. Without tables there is nothing more to look at."""
    with opened(config.warehouse) as tables:
        checks: tuple[Callable[[Tables, Config], Diagnosis], ...] = (
            _tables, _disk, _coordinator, _pending, _discards, _rejects, _files, _kafka, _rules,
        )  # fmt: skip
        for check in checks if config.checks else checks[:-1]:
            try:
                yield check(tables, config)
            except CommitLakeError as error:
                yield Diagnosis(check.__name__.removeprefix("_"), False, str(error))
                if check is _tables:
                    return


def _tables(tables: Tables, config: Config) -> Diagnosis:
    wrong = list(storage.damaged(tables, config.warehouse))
    if wrong:
        more = f"; and {len(wrong) - 1} more like it" if wrong[1:] else ""
        return Diagnosis("tables", False, f"{wrong[0]}{more}")
    tables.open("half", "op", "transactions", "batches", "epochs", "rejected", "positions")
    batch = tables.rows("SELECT max(batch_id) AS n FROM batches")["n"][0].as_py()
    return Diagnosis("tables", True, f"{config.warehouse}, up to batch {batch}")


def _disk(tables: Tables, config: Config) -> Diagnosis:
    return Diagnosis("disk", *storage.room(config))


def _coordinator(tables: Tables, config: Config) -> Diagnosis:
    tables.open("epochs")
    newest = tables.rows("SELECT epoch, host, pid, started_at, version FROM epochs ORDER BY epoch DESC LIMIT 1")
    if not newest.num_rows:
        return Diagnosis("coordinator", False, "none has run yet; start one")
    row = newest.to_pylist()[0]
    text = f"epoch {row['epoch']} on {row['host']}, pid {row['pid']}, version {row['version']}"
    if liveness.runs(config):
        return Diagnosis("coordinator", True, text)
    seen = liveness.text_of(liveness.last_seen_ms(tables, config))
    return Diagnosis("coordinator", False, f"none runs; the last one was {text}, seen last at {seen}; start one")


def _pending(tables: Tables, config: Config) -> Diagnosis:
    pending = overview.pending(tables, now_ms()).to_pylist()
    oldest_s = max((row["oldest_s"] for row in pending), default=0)
    text = counted(sum(row["messages"] for row in pending), "transaction")
    text += f", the oldest {oldest_s:.0f} s old" if pending else ""
    is_well = oldest_s * 1_000 <= config.transaction.hangs_after_ms
    return Diagnosis("pending", is_well, text if is_well else f"{text}; `commitlake tx hanging` names their groups")


def _discards(tables: Tables, config: Config) -> Diagnosis:
    count = pc.sum(overview.discarded(tables, now_ms() - _DAY_MS)["messages"]).as_py() or 0
    text = f"{counted(count, 'half message')} in the last day"
    return Diagnosis("discarded", count == 0, text if not count else f"{text}; `commitlake tx list --state DISCARDED`")


def _rejects(tables: Tables, config: Config) -> Diagnosis:
    records = {row["reason"]: row["records"] for row in overview.reasons(tables, now_ms() - _DAY_MS).to_pylist()}
    duplicates = records.pop(DUPLICATE_OF, 0)
    count = sum(records.values())
    text = f"{counted(count, 'record')} in the last day"
    text += f", beside {counted(duplicates, 'duplicate')} of topics.dedup" if duplicates else ""
    return Diagnosis("rejected", count == 0, text if not count else f"{text}; `commitlake rejected`")


def _files(tables: Tables, config: Config) -> Diagnosis:
    counts = {name: tables.files(name).num_rows for name in ("half", "op", "transactions")}
    most = max(counts.values())
    text = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Diagnosis("files", most < _MOST_FILES, text if most < _MOST_FILES else f"{text}; does maintenance run?")


def _rules(tables: Tables, config: Config) -> Diagnosis:
    """Whether each rule of `checks` can be asked: a database connects, a table has the columns."""
    try:
        from commitlake.coordinator.resolving.resolve import Resolver

        answers = Resolver(config, BrokerClock()).look()
    except ModuleNotFoundError as error:
        return Diagnosis("rules", False, f"the Python module {error.name} is missing; pip install 'commitlake[all]'")
    except duckdb.Error as error:
        return Diagnosis("rules", False, str(error).splitlines()[0])
    return Diagnosis("rules", True, ", ".join(f"{group} answers {count} now" for group, count in answers.items()))


def _kafka(tables: Tables, config: Config) -> Diagnosis:
    if config.kafka.is_embedded:
        return Diagnosis("kafka", True, "embedded; give its address with --set kafka.bootstrap_servers=HOST:PORT")
    landed = {(row["source"], row["queue"]): row["next"] for row in tables.rows(_LANDED).to_pylist()}
    with connect(config) as client:
        ends = topics.log_ends(client, config, LANDED)
        waiting = held_back(client, config, ends)
    lag = sum(
        max(0, end.offset - landed.get((source, queue), 0))
        for source, numbers in ends.items()
        for queue, end in numbers.items()
    )
    text = f"{config.kafka.bootstrap_servers}: {counted(lag, 'record') if lag else 'nothing'} still to land"
    if waiting:
        names = ", ".join(f"{config.kafka.topic(source)}-{queue}" for source, queue in sorted(waiting))
        text += f", behind Kafka transactions that are open in {names}"
    return Diagnosis("kafka", lag <= _MOST_LAG, text if lag <= _MOST_LAG else f"{text}; does a coordinator run?")
