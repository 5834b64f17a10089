"""The work of the commands about groups of consumers; each returns its exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow.compute as pc

from commitlake.clients.consumer import overview
from commitlake.clients.consumer import unfinished as unfinished_messages
from commitlake.clients.consumer.group import kept_receipts
from commitlake.clients.consumer.rows import place_of
from commitlake.config import Config
from commitlake.config.locations import not_there
from commitlake.errors import ConsumerError, NoTableError
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.protocol.durations import duration_ms
from commitlake.tools.cli import output
from commitlake.tools.cli.questions import FOUND, NOTHING, show

_MOST = 100_000
"""Groups that are shown."""


def unfinished(
    settings: Config, topic: str, group: str, tags: str | None, where: str | None, limit: int, as_json: bool
) -> int:
    """Show the messages that a group has not finished."""
    found = unfinished_messages.unfinished(settings, topic, group, tags=tags, where=where, limit=limit + 1)
    if not unfinished_messages.is_known(settings, topic, group):
        told = f"group {group!r} has never read the topic {topic}; `commitlake groups` shows those that did"
        print(told, file=sys.stderr)
        return NOTHING
    return show(found.drop_columns(["properties"]), limit, as_json, is_cut=True)


def groups(settings: Config, topic: str | None, group: str | None, as_json: bool) -> int:
    """Show groups of consumers: all, or those of a name or a topic."""
    found = overview.groups(settings)
    if not found.num_rows and (absent := not_there(settings.warehouse)):
        msg = f"warehouse: {absent}"
        raise NoTableError(msg)
    for name, wanted in (("topic", topic), ("consumer_group", group)):
        found = found if wanted is None else found.filter(pc.equal(found[name], wanted))
    return show(found, _MOST, as_json)


def rewind(settings: Config, topic: str, group: str, to: str) -> int:
    """Move a group to another place in a topic."""
    given = moment(to)
    overview.rewind(settings, topic, group, given)
    print(f"within some seconds the group {group} continues in {topic} with {_named(given)}")
    return FOUND


def _named(given: str | datetime) -> str:
    named = {"first": "its first message", "newest": "the next message"}
    return named.get(str(given)) or f"what became visible at {output.text(given)} or later"


def delete(settings: Config, topic: str, group: str) -> int:
    """Delete a group."""
    overview.delete(settings, topic, group)
    print(f"the group {group} of the topic {topic} is forgotten")
    return FOUND


def moment(text: str) -> str | datetime:
    """The place in `--rewind`: `first`, `newest`, `2h` ago, ms since epoch, or a time, UTC where it has no zone.

    Raises:
        ConsumerError: it is none of these.
    """
    if text in ("first", "newest", "0"):
        return "first" if text == "0" else text
    try:
        ago_ms = duration_ms(text)
        is_ms = re.fullmatch("[0-9]{12,14}", text)  # fewer are seconds
        at_ms = now_ms() - ago_ms if ago_ms is not None else int(text) if is_ms else None
        given = datetime.fromisoformat(text) if at_ms is None else as_datetime(at_ms)
        given = given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        allowed = "first, newest, 2h for two hours ago, ms since epoch (13 digits), or 2026-11-01T00:00:00, in UTC"
        msg = f"--rewind: {text!r} is not allowed; give {allowed}"
        raise ConsumerError(msg) from error
    if given > datetime.now(UTC):
        msg = f"--rewind: {text} is not allowed, since it lies ahead; give newest to go on with the next message"
        raise ConsumerError(msg)
    return given


def send_again(settings: Config, topic: str, group: str, positions: Sequence[str], remark: str) -> int:
    """Send dead letters again: these, or all."""
    overview.check_known(settings, topic, group)
    table = kept_receipts(settings.receipts_place, group, topic)
    letters = {"-".join(map(str, place_of(row))): row for row in table.dead()}
    chosen = [letters[position] for position in positions or letters if position in letters]
    for position in sorted(set(positions) - letters.keys()):
        print(f"{position} is no dead letter of the group {group}")
    table.send_again(chosen, remark, now_ms())
    when = "; the group gets them within some seconds" if chosen else ""
    print(f"sent {len(chosen)} of {len(letters)} dead letters again{when}")
    return FOUND if chosen else NOTHING
