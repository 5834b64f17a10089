"""The commands about groups of consumers."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from commitlake.config import Config
from commitlake.config.locations import not_there
from commitlake.errors import ConsumerError, NoTableError
from commitlake.protocol.clock import as_datetime, now_ms
from commitlake.protocol.durations import duration_ms
from commitlake.tools.cli import output
from commitlake.tools.cli.options import AsJson, Group, Limit, Tags, Topic, Where, command, flag, optional
from commitlake.tools.cli.output import FOUND, NOTHING

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 100_000
"""Groups that are shown."""


@command
def unfinished(
    settings: Config,
    topic: Topic,
    group: Group,
    tags: Tags = None,
    where: Where = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> int:
    """List what a group has not finished, the oldest first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.clients.consumer import unfinished as messages
    from commitlake.tools.cli.questions import show

    found = messages.unfinished(settings, topic, group, tags=tags, where=where, limit=limit + 1)
    if not messages.is_known(settings, topic, group):
        told = f"group {group!r} has never read the topic {topic}; `commitlake groups` shows those that did"
        print(told, file=sys.stderr)
        return NOTHING
    return show(found.drop_columns(["properties"]), limit, as_json, is_cut=True)


@command
def groups(
    settings: Config,
    topic: str | None = optional("--topic", "TOPIC", "Only groups of this topic."),
    group: str | None = optional("--group", "GROUP", "Only this group."),
    rewind: str | None = optional(
        "--rewind", "WHERE", "Continue at first, newest, 2h (ago), ms since epoch or a time in UTC."
    ),
    delete: bool = flag("--delete", "Delete a group whose instances have ended."),
    as_json: AsJson = False,
) -> int:
    """List consumer groups and their lag; rewind or delete one.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.clients.consumer import overview

    if rewind is None and not delete:
        return _shown(overview.groups(settings), settings, topic, group, as_json)
    if topic is None or group is None or (delete and rewind is not None):
        msg = "give --topic and --group with one of --rewind and --delete"
        raise typer.BadParameter(msg)
    if delete:
        overview.delete(settings, topic, group)
        print(f"the group {group} of the topic {topic} is forgotten")
    else:
        given = moment(rewind or "")
        overview.rewind(settings, topic, group, given)
        print(f"within some seconds the group {group} continues in {topic} with {_named(given)}")
    return FOUND


def _shown(found: pa.Table, settings: Config, topic: str | None, group: str | None, as_json: bool) -> int:
    import pyarrow.compute as pc

    from commitlake.tools.cli.questions import show

    if not found.num_rows and (absent := not_there(settings.warehouse)):
        msg = f"warehouse: {absent}"
        raise NoTableError(msg)
    for name, wanted in (("topic", topic), ("consumer_group", group)):
        found = found if wanted is None else found.filter(pc.equal(found[name], wanted))
    return show(found, _MOST, as_json)


def _named(given: str | datetime) -> str:
    named = {"first": "its first message", "newest": "the next message"}
    return named.get(str(given)) or f"what became visible at {output.text(given)} or later"


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


@command
def send_again(
    settings: Config,
    topic: Topic,
    group: Group,
    positions: Annotated[
        list[str] | None, typer.Argument(metavar="POSITION", help="As `unfinished` shows them; default all.")
    ] = None,
    remark: str = optional("--remark", "TEXT", "Why; kept in the receipt.", ""),
) -> int:
    """Send a group its dead letters again.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.clients.consumer import overview
    from commitlake.clients.consumer.group import kept_receipts
    from commitlake.clients.consumer.rows import place_of

    overview.check_known(settings, topic, group)
    table = kept_receipts(settings.receipts_place, group, topic)
    letters = {"-".join(map(str, place_of(row))): row for row in table.dead()}
    named = positions or []
    chosen = [letters[position] for position in named or letters if position in letters]
    for position in sorted(set(named) - letters.keys()):
        print(f"{position} is no dead letter of the group {group}")
    table.send_again(chosen, remark, now_ms())
    when = "; the group gets them within some seconds" if chosen else ""
    print(f"sent {len(chosen)} of {len(letters)} dead letters again{when}")
    return FOUND if chosen else NOTHING
