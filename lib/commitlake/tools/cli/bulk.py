"""Operations that are shown first, then sent: forced decisions on many transactions, and recalls of delayed messages.

Decisions go to `admin` at a steady pace. An interrupted run is continued by the same command: transactions decided
meanwhile no longer fit its filters.
"""

from __future__ import annotations

import getpass
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import typer

from commitlake.config import Config
from commitlake.config.terminal import counted, printable
from commitlake.errors import CommitLakeError, ConfigError
from commitlake.kafka.admin_client import many_records
from commitlake.protocol import wire
from commitlake.protocol.clock import now_ms
from commitlake.protocol.encoding import Position
from commitlake.protocol.kafka_topics import OP
from commitlake.reading.questions.delayed import recall_of, waiting
from commitlake.reading.questions.tables import Tables, escaped, opened
from commitlake.reading.questions.transactions import COLUMNS, Wanted, found, history
from commitlake.tools.audit.admin import sending
from commitlake.tools.cli import output
from commitlake.tools.cli.options import with_address
from commitlake.tools.cli.output import FOUND, NOTHING
from commitlake.tools.cli.questions import asked, show

_EXAMPLES = 10
_EXISTS = re.compile(r"delta:(?P<place>.+?)\s+ON\s+(?P<own>\w+)\s*=\s*(?P<other>\w+)", re.IGNORECASE)


@dataclass(frozen=True)
class BulkDecision:
    """A decision on a selection of transactions.

    Attributes:
        decision: RESUME, COMMIT or ROLLBACK.
        wanted: which transactions.
        ids: of them only these; all, when empty.
        exists_in: `delta:PATH ON <column of ours> = <column of the table>`: of them only those that the table has.
        remark: kept in the table `op`.
        rate: decisions a second at most.
    """

    decision: str
    wanted: Wanted
    ids: tuple[str, ...]
    exists_in: str | None
    remark: str
    rate: int


def run(settings: Config, plan: BulkDecision, *, dry_run: bool, ask: bool) -> int:
    """Show the chosen transactions, ask, and send; returns the exit code."""
    if not dry_run:
        settings = with_address(settings)
    with opened(settings) as tables:
        chosen = asked(lambda: chosen_by(tables, plan), where=plan.wanted.where, exists_in=plan.exists_in)
        rows = chosen.to_pylist()
        names = {row["transaction_id"] for row in rows}
        others = [each for each in dict.fromkeys(plan.ids) if each not in names]
        for name in others[:_EXAMPLES]:
            print(printable(f"{name}: {_why_not(tables, plan, name)}"))
    if len(others) > _EXAMPLES:
        print(f"and {len(others) - _EXAMPLES} more that are not chosen")
    print(f"{plan.decision} of {counted(len(rows), 'transaction')}{_introduction(len(rows))}")
    if not rows:
        return NOTHING
    output.show(COLUMNS, ([row[name] for name in COLUMNS] for row in rows[:_EXAMPLES]))
    if dry_run:
        return FOUND
    if ask and not typer.confirm(f"Send {counted(len(rows), 'decision')}?"):
        return 1
    return _sent(settings, plan, rows)


def _introduction(chosen: int) -> str:
    return ", for example:" if chosen > _EXAMPLES else ":" if chosen else ""


def _why_not(tables: Tables, plan: BulkDecision, name: str) -> str:
    """Why a transaction that was named is not chosen."""
    told = history(tables, name)
    if told is None or not told["half_messages"]:
        return "nothing is known of it"
    if told["transaction_id"] != name:
        return f"is a message of the transaction {told['transaction_id']}"
    if told["state"] in plan.wanted.states:
        return "does not fit the filters"
    ends = [event["at"] for event in told["events"] if event["what"] == told["state"]]
    return f"is {told['state']}{f' since {output.text(ends[-1])}' if ends else ''}"


def who() -> str:
    """The user who runs this process, as remarks name them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        return f"user {os.getuid()}"


def chosen_by(tables: Tables, plan: BulkDecision) -> pa.Table:
    """The transactions of a plan, the oldest first."""
    rows = found(tables, plan.wanted, now_ms())
    tables.db.register("chosen", rows)
    conditions = ["true"]
    if plan.ids:
        ids = ", ".join(f"'{escaped(each)}'" for each in plan.ids)
        conditions.append(f"transaction_id IN ({ids})")
    if plan.exists_in is not None:
        conditions.append(_exists(tables, plan.exists_in))
    return tables.rows(f"SELECT * FROM chosen WHERE {' AND '.join(conditions)} ORDER BY stored_at, queue, queue_offset")


def _exists(tables: Tables, given: str) -> str:
    parsed = _EXISTS.fullmatch(given.strip())
    if parsed is None:
        msg = f"--exists-in: {given!r} is not allowed; write 'delta:PATH ON keys = id', with a column of each side"
        raise ConfigError(msg)
    view = tables.outside(parsed["place"])
    return f"{parsed['own']} IN (SELECT {parsed['other']} FROM {view})"


def send(settings: Config, plan: BulkDecision, rows: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Send decisions in their order, no more than `rate` a second; yields after each how many are sent."""
    begun = time.monotonic()
    with sending(settings.kafka) as send_one:
        for sent, row in enumerate(rows, 1):
            first = Position(row["queue"], row["queue_offset"])
            send_one(plan.decision, row["transaction_id"], first, plan.remark)
            yield sent
            time.sleep(max(0.0, begun + sent / plan.rate - time.monotonic()))


def _sent(settings: Config, plan: BulkDecision, rows: Sequence[Mapping[str, Any]]) -> int:
    sent = 0
    try:
        for sent in send(settings, plan, rows):  # noqa: B007
            pass
    except (CommitLakeError, KeyboardInterrupt) as error:
        print(f"{sent} of {len(rows)} are sent ({error or 'interrupted'}); run the same command again for the rest")
        return 1
    print(f"sent {counted(sent, 'decision')}; within some seconds `commitlake tx list` shows the results")
    return FOUND


def send_recalls(settings: Config, rows: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Recall the messages of rows of `waiting`; yields their number once all recalls are sent."""
    with many_records(settings.kafka) as put:
        for row in rows:
            record = wire.encode_recall(recall_of(row))
            put(settings.kafka.topic(OP), key=record.key, value=record.value, partition=row["queue"])
    yield len(rows)


def recall(settings: Config, topic: str, keys: str, *, dry_run: bool, ask: bool) -> int:
    """Show the delayed messages with a key, then recall them."""
    if not dry_run:
        settings = with_address(settings)
    with opened(settings) as tables:
        chosen = waiting(tables, topic, keys)
    show(chosen, _EXAMPLES, as_json=False)
    rows = chosen.to_pylist()
    if not rows or dry_run:
        return FOUND if rows else NOTHING
    if ask and not typer.confirm(f"Recall {counted(len(rows), 'message')}?"):
        return 1
    (sent,) = send_recalls(settings, rows)
    print(f"sent {counted(sent, 'recall')}; `commitlake rejected` lists those that came too late, as RECALL_TOO_LATE")
    return FOUND
