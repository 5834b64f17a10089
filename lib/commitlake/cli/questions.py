"""The work of the commands that need no Spark; each returns its exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from commitlake.cli import output
from commitlake.config import Config
from commitlake.consumer import unfinished as unfinished_messages
from commitlake.consumer.receipts import Receipts, now_ms
from commitlake.consumer.rows import place_of

FOUND, NOTHING = 0, 3


def unfinished(
    settings: Config, topic: str, group: str, tags: str | None, where: str | None, limit: int, as_json: bool
) -> int:
    """Show what a group has not done."""
    found = unfinished_messages.unfinished(settings, topic, group, tags=tags, where=where)
    return show(found.drop_columns(["properties"]), limit, as_json)


def send_again(settings: Config, topic: str, group: str, positions: Sequence[str], remark: str) -> int:
    """Send dead letters again: these, or all."""
    table = Receipts(f"{settings.receipts_place}/receipts", group, topic)
    letters = {"-".join(map(str, place_of(row))): row for row in table.dead()}
    chosen = [letters[position] for position in positions or letters if position in letters]
    for position in sorted(set(positions) - letters.keys()):
        print(f"{position} is no dead letter of the group {group}")
    table.send_again(chosen, remark, now_ms())
    print(f"{len(chosen)} of {len(letters)} dead letters are sent again, within some seconds")
    return FOUND if chosen else NOTHING


def show(found: pa.Table, limit: int, as_json: bool) -> int:
    """Print rows as a table, or one JSON object a line; times are UTC."""
    rows = found.slice(0, limit).to_pylist()
    if as_json:
        for row in rows:
            print(json.dumps({name: _text(value) for name, value in row.items()}, ensure_ascii=False))
    else:
        output.show(found.column_names, (map(_text, row.values()) for row in rows))
        print(f"({len(rows)} of {found.num_rows} rows)")
    return FOUND if rows else NOTHING


def _text(value: object) -> object:
    return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if isinstance(value, datetime) else value
