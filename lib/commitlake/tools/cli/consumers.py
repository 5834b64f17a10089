"""The work of the commands about groups of consumers; each returns its exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow.compute as pc

from commitlake.clients.consumer import overview
from commitlake.clients.consumer import unfinished as unfinished_messages
from commitlake.clients.consumer.group import kept_receipts, kept_state
from commitlake.clients.consumer.rows import place_of
from commitlake.config import Config
from commitlake.errors import ConsumerError
from commitlake.protocol.clock import now_ms
from commitlake.tools.cli import output
from commitlake.tools.cli.questions import FOUND, NOTHING, show

_MOST = 100_000
"""Groups that are shown."""


def unfinished(
    settings: Config, topic: str, group: str, tags: str | None, where: str | None, limit: int, as_json: bool
) -> int:
    """Show what a group has not done."""
    found = unfinished_messages.unfinished(settings, topic, group, tags=tags, where=where, limit=limit + 1)
    if kept_state(settings.receipts_place, group, topic) is None:
        told = f"group {group!r} has never read the topic {topic} with `consume`"
        print(told, file=sys.stderr)
    code = show(found.drop_columns(["properties"]).slice(0, limit), limit, as_json)
    if found.num_rows > limit and not as_json:
        print("there are more; --limit shows them")
    return code


def groups(settings: Config, topic: str | None, group: str | None, as_json: bool) -> int:
    """Show groups of consumers: all, or those of a name or a topic."""
    found = overview.groups(settings)
    for name, wanted in (("topic", topic), ("consumer_group", group)):
        found = found if wanted is None else found.filter(pc.equal(found[name], wanted))
    return show(found, _MOST, as_json)


def rewind(settings: Config, topic: str, group: str, to: str) -> int:
    """Let a group go on elsewhere."""
    given = moment(to)
    overview.rewind(settings, topic, group, given)
    print(f"the group {group} goes on in {topic} with {_named(given)}, within some seconds")
    return FOUND


def _named(given: str | datetime) -> str:
    named = {"first": "its first message", "newest": "the next message"}
    return named.get(str(given)) or f"what became visible at {output.text(given)} UTC or later"


def delete(settings: Config, topic: str, group: str) -> int:
    """Forget a group."""
    overview.delete(settings, topic, group)
    print(f"the group {group} of the topic {topic} is forgotten")
    return FOUND


def moment(text: str) -> str | datetime:
    """What `--rewind` names: `first`, `newest`, ms since epoch, or a time, UTC where it has no zone.

    Raises:
        ConsumerError: it is none of these.
    """
    if text in ("first", "newest", "0"):
        return "first" if text == "0" else text
    try:
        is_ms = re.fullmatch("[0-9]{12,14}", text)  # fewer are seconds
        given = datetime.fromtimestamp(int(text) / 1_000, UTC) if is_ms else datetime.fromisoformat(text)
        given = given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        allowed = "first, newest, ms since epoch (13 digits), or a time such as 2026-11-01T00:00:00, UTC without a zone"
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
    when = ", within some seconds" if chosen else ""
    print(f"{len(chosen)} of {len(letters)} dead letters are sent again{when}")
    return FOUND if chosen else NOTHING
