"""The work of the commands that need no Spark; each returns its exit code."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable

import duckdb
import pyarrow as pa

from commitlake.config import Config
from commitlake.config.terminal import json_line, printable
from commitlake.errors import ConfigError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import Tables, opened
from commitlake.reading.questions.transactions import COLUMNS, Wanted, found
from commitlake.reading.questions.transactions import history as transaction_history
from commitlake.tools.cli import output
from commitlake.tools.cli.output import FOUND, NOTHING

_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K\n", "\x1b[J"
_WATCH_S = 2.0
_NO_KEY = "no transaction with these filters has the key; `commitlake find KEY` looks among all messages"
_OTHERS = "a message sent without one is in its topic's table, one with a delay in `commitlake delayed` until it is due"


def ask(settings: Config, question: Callable[[Tables], pa.Table], limit: int, as_json: bool) -> int:
    """Show the answer to a question."""
    with opened(settings) as tables:
        return show(question(tables), limit, as_json)


def repeat(watch: bool, work: Callable[[], int]) -> int:
    """Do the work once, or every 2 s until Ctrl-C; returns the exit code."""
    if not watch:
        return work()
    try:
        while True:
            with contextlib.redirect_stdout(io.StringIO()) as answer:
                work()
            # Drawn over the last answer, at once: a screen that is cleared first is empty while the tables are read.
            print(_HOME + answer.getvalue().replace("\n", _ERASE_LINE) + _ERASE_BELOW, end="", flush=True)
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        return FOUND


def transactions(settings: Config, wanted: Wanted, limit: int, as_json: bool, *, oldest_first: bool = False) -> int:
    """List transactions."""
    with opened(settings) as tables:
        rows = asked(lambda: found(tables, wanted, now_ms(), None if oldest_first else limit + 1), where=wanted.where)
    rows = rows.select([*COLUMNS, "age_ms"])
    if wanted.keys is not None and not rows.num_rows:
        print(_NO_KEY, file=sys.stderr)
    return show(rows.sort_by("stored_at") if oldest_first else rows, limit, as_json, is_cut=not oldest_first)


def history(settings: Config, transaction_id: str, as_json: bool) -> int:
    """Show the history of a transaction."""
    with opened(settings) as tables:
        found = transaction_history(tables, transaction_id)
    if found is None:
        print(printable(f"there is no transaction and no half message {transaction_id}; {_OTHERS}"))
        return NOTHING
    if as_json:
        found["events"] = [{**event, "at": output.text(event["at"])} for event in found["events"]]
        print(json_line(found))
        return FOUND
    named = ("producer_group", "state", "reason", "checks", "round")
    lines = [f"{name} {found[name]}" for name in named if found[name] is not None]
    print(printable(f"{transaction_id}: {', '.join(lines)}"))
    halves = found["half_messages"]
    output.show(list(halves[0]) if halves else [], (half.values() for half in halves))
    output.show(["at", "what", "detail"], (event.values() for event in found["events"]))
    return FOUND


def asked(question: Callable[[], pa.Table], **conditions: str | None) -> pa.Table:
    """The answer to a question; an error in the user's `conditions`, by option, becomes a short one.

    Raises:
        ConfigError: a condition can't be used.
    """
    try:
        return question()
    except duckdb.Error as error:
        options = [f"--{name.replace('_', '-')}" for name, given in conditions.items() if given is not None]
        if not options:
            raise
        told = str(error).splitlines()[0]
        msg = f"{' or '.join(options)}: {told}; give a condition on columns of half and transactions"
        raise ConfigError(msg) from error


def show(found: pa.Table, limit: int, as_json: bool, *, is_cut: bool = False) -> int:
    """Print rows as a table, or one JSON object a line; times are UTC.

    Args:
        found: the rows.
        limit: show at most so many.
        as_json: print objects.
        is_cut: one row more than the limit stands for all others, which were not counted.
    """
    rows = found.slice(0, limit).to_pylist()
    if as_json:
        for row in rows:
            print(json_line({name: output.text(value) for name, value in row.items()}))
    else:
        output.show(found.column_names, (row.values() for row in rows))
        is_more = is_cut and found.num_rows > limit
        told = "rows, and there are more; --limit shows them" if is_more else f"of {found.num_rows} rows"
        print(f"({len(rows)} {told})")
    return FOUND if rows else NOTHING
