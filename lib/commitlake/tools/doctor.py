"""`commitlake doctor`: checks of a warehouse and its Kafka, with one finding each."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import unquote

import duckdb
import pyarrow.compute as pc

from commitlake.clients.consumer import overview as consumers
from commitlake.config import Config, disks
from commitlake.config.locations import is_local, local_path
from commitlake.config.terminal import counted
from commitlake.errors import CommitLakeError, NoTableError, WarehouseError, installed_by
from commitlake.kafka import topics
from commitlake.kafka.admin_client import connect
from commitlake.kafka.log_end_watcher import held_back
from commitlake.kafka.oldest import oldest_ms
from commitlake.protocol.clock import BrokerClock, as_datetime, now_ms
from commitlake.protocol.durations import DAY_MS, HOUR_MS
from commitlake.protocol.states import DUPLICATE_OF
from commitlake.reading import damage
from commitlake.reading.catalog import described, location
from commitlake.reading.questions import liveness, overview
from commitlake.reading.questions.tables import Tables, opened
from commitlake.reading.table import Snapshot, folders
from commitlake.tools import findings
from commitlake.tools.backup import TABLES
from commitlake.tools.findings import Diagnosis

_MOST_LATE_S = 60
_MOST_BEHIND_S = 600
_HEALTH_S = 5.0
_MOST_FILES = 2_000
_LEAST_FREE = 0.1
_LANDED = """
SELECT o.source AS source, o."partition" AS queue, o.next AS next FROM (
    SELECT unnest(offsets) AS o FROM positions WHERE landing_id = (SELECT max(landing_id) FROM positions))
"""


def make_room(config: Config) -> None:
    """Delete the ballast, and print where to read what to do next."""
    size = disks.free_ballast(config)
    done = f"{size / 2**20:.0f} MiB are free again" if size else "there is no ballast: deleted, or not made yet"
    print(f"{done}; see {disks.REMEDY}", file=sys.stderr)


def show(config: Config, as_json: bool) -> int:
    """Print whether all is well; returns 1 when something is not."""
    return int(not findings.show(list(examine(config)), "LOOK", as_json))


def examine(config: Config) -> Iterator[Diagnosis]:
    """Run all checks; one that can't run is a finding, too. Where the tables can't be checked, no other check runs."""
    with opened(config) as tables:
        checks: tuple[Callable[[Tables, Config], Diagnosis], ...] = (
            _tables, _disk, _coordinator, _pending, _late, _discards, _rejects, _files, _kafka, _groups, _rules,
        )  # fmt: skip
        for check in checks if config.checks else checks[:-1]:
            try:
                yield check(tables, config)
            # This may be another user than the coordinator's; DuckDB reports tables with other columns.
            except (CommitLakeError, OSError, duckdb.Error) as error:
                told = str(error).splitlines()[0] if isinstance(error, duckdb.Error) else str(error)
                remedy = damage.remedy(told, "") if isinstance(error, OSError) else ""
                what = check.__name__.removeprefix("_")
                yield Diagnosis(what, False, f"{told}; {remedy}" if remedy else told)
                if check is _tables:
                    return


def _tables(tables: Tables, config: Config) -> Diagnosis:
    wrong = [*filter(None, _damaged(tables, config))]
    if wrong:
        more = f"; and {len(wrong) - 1} more like it" if wrong[1:] else ""
        return Diagnosis("tables", False, f"{wrong[0]}{more}")
    tables.open("half", "op", "transactions", "batches", "epochs", "rejected", "positions")
    batch = tables.rows("SELECT max(batch_id) AS n FROM batches")["n"][0].as_py()
    reached = "without a batch yet" if batch is None else f"up to batch {batch}"
    return Diagnosis("tables", True, f"{config.warehouse}, {reached}")


def _damaged(tables: Tables, config: Config) -> Iterator[str]:
    """For each table a text, empty unless it is missing, can't be read, or has lost a file; none without any table."""
    if not config.catalog.url and not {*TABLES} & {*folders(config.tables_at)}:
        return
    for name in TABLES:
        yield _wrong(config, name, _absent)
    try:
        topics = tables.listed_topics()
    except WarehouseError:  # reported above, or no coordinator has run
        return
    for topic in topics:
        yield _wrong(config, f"topics/{topic}", damage.of_topic)


def _absent(place: str) -> str:
    return f"there is no table at {place}; start the coordinator of this version once, or {damage.REMEDY}"


def _wrong(config: Config, name: str, absent: Callable[[str], str]) -> str:
    try:
        table = Snapshot(*location(config, name))
        if not is_local(table.place):
            return ""
        files = table.files().select(["path", "size_bytes"]).to_pydict()
    except NoTableError:
        return absent(described(config, name))
    except WarehouseError as error:
        return str(error)
    root, sizes = local_path(table.place), zip(map(unquote, files["path"]), files["size_bytes"], strict=True)
    wrong = damage.of_log(root) or damage.of_files(root, sizes)
    return damage.told(root, wrong) if wrong else ""


def _disk(tables: Tables, config: Config) -> Diagnosis:
    found = list(disks.disks(config))
    text = "; ".join(f"{disk}, {disk.free / max(disk.total, 1):.0%}" for disk in found) or "not local"
    if disks.short(config):
        return Diagnosis("disk", False, f"{text}; nothing lands until there is more room: {disks.REMEDY}")
    is_well = all(disk.free >= _LEAST_FREE * disk.total for disk in found)
    return Diagnosis("disk", is_well, text if is_well else f"{text}; make room, or move it")


def _coordinator(tables: Tables, config: Config) -> Diagnosis:
    tables.open("epochs")
    newest = tables.rows("SELECT epoch, host, pid, started_at, version FROM epochs ORDER BY epoch DESC LIMIT 1")
    if not newest.num_rows:
        return Diagnosis("coordinator", False, "none has run yet; start one")
    row = newest.to_pylist()[0]
    text = f"epoch {row['epoch']} on {row['host']}, pid {row['pid']}, version {row['version']}"
    if liveness.runs(config):
        wrong = _unhealthy(config, row["host"])
        return Diagnosis("coordinator", not wrong, f"{text}; {wrong}" if wrong else text)
    seen = f"{as_datetime(liveness.last_seen_ms(tables, config)):%Y-%m-%dT%H:%M:%SZ}"
    return Diagnosis("coordinator", False, f"none runs; the last one was {text}, seen last at {seen}; start one")


def _unhealthy(config: Config, host: str) -> str | None:
    """The problem that the coordinator on a host reports; None where it has none, or can't be asked from here.

    Its lock and its signs of life do not show that: they go on even while its process is stopped, or hangs.
    """
    named, port, is_here = config.metrics.host, config.metrics.port, host == socket.gethostname()
    try:
        given = ipaddress.ip_address(named)
    except ValueError:
        given = None
    if not port or (given is not None and given.is_loopback and not is_here):
        return None
    asked = named if given is None or not given.is_unspecified else "127.0.0.1" if is_here else host
    connection = http.client.HTTPConnection(asked, port, timeout=_HEALTH_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace").strip()
    except socket.gaierror:  # such as the name of a pod
        return None
    except (OSError, http.client.HTTPException) as error:
        remedy = "is it still starting? If not, end that process and start another"
        return f"its /healthz at {asked}:{port} does not answer ({error}); {remedy}"
    finally:
        connection.close()
    return None if answer.status == http.HTTPStatus.OK else f"{said}; its log says more"


def _pending(tables: Tables, config: Config) -> Diagnosis:
    pending = overview.pending(tables, now_ms()).to_pylist()
    oldest_s = max((row["oldest_s"] for row in pending), default=0)
    text = counted(sum(row["messages"] for row in pending), "transaction")
    text += f", the oldest {oldest_s:.0f} s old" if pending else ""
    is_well = oldest_s * 1_000 <= config.transaction.hangs_after_ms
    return Diagnosis("pending", is_well, text if is_well else f"{text}; `commitlake tx hanging` names their groups")


def _late(tables: Tables, config: Config) -> Diagnosis:
    """How late messages became visible, from the op, the own append or the due time."""
    now = now_ms()
    found = overview.lateness(tables, now - HOUR_MS, now).to_pylist()
    if not found:
        return Diagnosis("late", True, "nothing became visible in the last hour")
    worst = max(found, key=lambda row: float(row["p99_s"]))
    text = f"{worst['p50_s']} s (p50), {worst['p99_s']} s (p99) in the last hour in the slowest topic, {worst['topic']}"
    is_well = worst["p99_s"] <= _MOST_LATE_S
    return Diagnosis("late", is_well, text if is_well else f"{text}; `commitlake stats --since 1h` tells all")


def _discards(tables: Tables, config: Config) -> Diagnosis:
    count = pc.sum(overview.discarded(tables, now_ms() - DAY_MS)["messages"]).as_py() or 0
    text = f"{counted(count, 'half message')} in the last day"
    return Diagnosis("discarded", count == 0, text if not count else f"{text}; `commitlake tx list --state DISCARDED`")


def _rejects(tables: Tables, config: Config) -> Diagnosis:
    records = {row["reason"]: row["records"] for row in overview.reasons(tables, now_ms() - DAY_MS).to_pylist()}
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
    """Whether each rule of `checks` works: a database connects, a table has the columns."""
    try:
        from commitlake.coordinator.resolving.resolve import Resolver

        answers = Resolver(config, BrokerClock()).look()
    except ModuleNotFoundError as error:
        return Diagnosis("rules", False, f"the Python module {error.name} is missing; {installed_by('all')}")
    return Diagnosis("rules", True, ", ".join(f"{group} answers {count} now" for group, count in answers.items()))


def _kafka(tables: Tables, config: Config) -> Diagnosis:
    if config.kafka.is_embedded and not liveness.runs(config):
        return Diagnosis("kafka", True, "embedded: it runs with its coordinator")
    config = replace(config, kafka=config.kafka.reached())
    if config.kafka.is_embedded:
        return Diagnosis("kafka", True, "embedded; give its address with --set kafka.bootstrap_servers=HOST:PORT")
    tables.open("positions")
    landed = {(row["source"], row["queue"]): row["next"] for row in tables.rows(_LANDED).to_pylist()}
    with connect(config) as client:
        ends = topics.log_ends(client, config)
        waiting = held_back(client, config, ends)
    places = {place: end.offset for place, end in ends.items()}
    next_ones = {place: landed.get(place, 0) for place, end in places.items() if end > landed.get(place, 0)}
    lag = sum(places[place] - offset for place, offset in next_ones.items())
    text = f"{config.kafka.bootstrap_servers}: {counted(lag, 'record') if lag else 'nothing'} still to land"
    since_ms = oldest_ms(config, next_ones)
    late_s = 0 if since_ms is None else max(0, now_ms() - since_ms) / 1_000
    text += f", the oldest for {late_s:.0f} s" if since_ms is not None else ""
    if waiting:
        names = ", ".join(f"{config.kafka.topic(source)}-{queue}" for source, queue in sorted(waiting))
        text += f", behind Kafka transactions that are open in {names}"
    is_well = late_s <= _MOST_LATE_S
    return Diagnosis("kafka", is_well, text if is_well else f"{text}; does a coordinator run, and keep up?")


def _groups(tables: Tables, config: Config) -> Diagnosis:
    """Whether each group of consumers that has messages to read has a running instance."""
    found, now_s = list(consumers.lags(config)), now_ms() / 1_000
    left = [
        f"{lag.group} has not read {counted(lag.behind, 'message')} of {lag.topic}, the oldest for {late_s:.0f} s; "
        "no instance of it runs: start one, or forget the group with "
        f"`commitlake groups --topic {lag.topic} --group {lag.group} --delete`"
        for lag in found
        if lag.behind and not lag.members and (late_s := lag.late_s(now_s)) > _MOST_BEHIND_S
    ]
    if left:
        more = f"; {len(left) - 1} more like it" if left[1:] else ""
        return Diagnosis("groups", False, f"{left[0]}{more}")
    most = max((lag.behind for lag in found), default=0)
    return Diagnosis("groups", True, f"{counted(len(found), 'group')}, at most {counted(most, 'message')} behind")
