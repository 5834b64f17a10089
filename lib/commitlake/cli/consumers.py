"""The work of the commands about groups of consumers; each returns its exit code."""

from __future__ import annotations

from collections.abc import Sequence

from commitlake.cli.questions import FOUND, NOTHING, show
from commitlake.clock import now_ms
from commitlake.config import Config
from commitlake.consumer import unfinished as unfinished_messages
from commitlake.consumer.receipts import Receipts
from commitlake.consumer.rows import place_of


def unfinished(
    settings: Config, topic: str, group: str, tags: str | None, where: str | None, limit: int, as_json: bool
) -> int:
    """Show what a group has not done."""
    found = unfinished_messages.unfinished(settings, topic, group, tags=tags, where=where, limit=limit + 1)
    code = show(found.drop_columns(["properties"]).slice(0, limit), limit, as_json)
    if found.num_rows > limit and not as_json:
        print("there are more; --limit shows them")
    return code


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
