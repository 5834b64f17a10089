"""The work of the commands about groups of consumers; each returns its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from commitlake.clients.consumer import overview
from commitlake.clients.consumer import unfinished as unfinished_messages
from commitlake.clients.consumer.group import kept_receipts, kept_state
from commitlake.clients.consumer.rows import place_of
from commitlake.config import Config
from commitlake.errors import ConsumerError
from commitlake.protocol.clock import now_ms
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


def groups(settings: Config, as_json: bool) -> int:
    """Show all groups of consumers."""
    return show(overview.groups(settings), _MOST, as_json)


def rewind(settings: Config, topic: str, group: str, to: str) -> int:
    """Let a group go on elsewhere."""
    overview.rewind(settings, topic, group, moment(to))
    print(f"the group {group} goes on in {topic} at {to}, within some seconds")
    return FOUND


def delete(settings: Config, topic: str, group: str) -> int:
    """Forget a group."""
    overview.delete(settings, topic, group)
    print(f"the group {group} of the topic {topic} is forgotten")
    return FOUND


def moment(text: str) -> str | int | datetime:
    """What `--rewind` names: `first`, `newest`, ms since epoch, or a time, UTC where it has no zone.

    Raises:
        ConsumerError: it is none of these.
    """
    if text.isdecimal() or text in ("first", "newest"):
        return int(text) if text.isdecimal() else text
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        allowed = "first, newest, ms since epoch, or a time such as 2026-11-01T00:00:00, UTC where it has no zone"
        msg = f"--rewind: {text!r} is not allowed; give {allowed}"
        raise ConsumerError(msg) from error
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def send_again(settings: Config, topic: str, group: str, positions: Sequence[str], remark: str) -> int:
    """Send dead letters again: these, or all."""
    table = kept_receipts(settings.receipts_place, group, topic)
    letters = {"-".join(map(str, place_of(row))): row for row in table.dead()}
    chosen = [letters[position] for position in positions or letters if position in letters]
    for position in sorted(set(positions) - letters.keys()):
        print(f"{position} is no dead letter of the group {group}")
    table.send_again(chosen, remark, now_ms())
    print(f"{len(chosen)} of {len(letters)} dead letters are sent again, within some seconds")
    return FOUND if chosen else NOTHING
