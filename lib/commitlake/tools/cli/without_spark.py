"""The commands that need no Spark: arguments and help. Each checks arguments and configuration, then does its work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlake.config import Config
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.states import REJECTED_REASONS
from commitlake.tools.cli import tx
from commitlake.tools.cli.consumers import groups, send_again, unfinished
from commitlake.tools.cli.gateway import gateway
from commitlake.tools.cli.iceberg import iceberg
from commitlake.tools.cli.messages import consume, send
from commitlake.tools.cli.options import LOCAL, AsJson, Limit, Master, Topic, command, flag, option, optional

_MOST_STATS = 10_000


def _ago(since_ms: int | None) -> int:
    """So long ago, ms since epoch, UTC; 0: all times count."""
    return 0 if since_ms is None else now_ms() - since_ms


def demo(
    place: Path = optional("--dir", "DIRECTORY", "Where its tables go; an earlier demo's are removed.", Path("demo")),
    is_opened: bool = flag("--open", "Open its report in a browser at the end."),
    master: Master = LOCAL,
) -> None:
    """Run the demo, which ends by itself in two to four minutes.

    It starts a broker, a coordinator that it kills, a standby that takes over, and an order service that crashes. Exit
    code 0 only if all tables agree at the end.
    """
    from commitlake.tools.cli import demo_directory

    raise typer.Exit(demo_directory.play(place.absolute(), master, is_opened=is_opened))


@command
def rejected(
    settings: Config,
    reason: str | None = optional(
        "--reason", "REASON", "Only with this reason, for example BAD_OP.", parser=tx.one_of(REJECTED_REASONS)
    ),
    since: tx.Since = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> int:
    """List rejected records, the newest first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.reading.questions import overview
    from commitlake.tools.cli.questions import ask

    return ask(settings, lambda tables: overview.rejected(tables, reason, _ago(since)), limit, as_json)


@command
def find(
    settings: Config,
    keys: Annotated[str, typer.Argument(metavar="KEY", help="A business key.")],
    limit: Limit = 100,
    as_json: AsJson = False,
) -> int:
    """Find a business key everywhere, in time order.

    Looks in transactions, delayed, visible and rejected messages, and receipts. Needs no Spark. Exit code 3 when
    nothing has the key.
    """
    from commitlake.reading.questions import find as everywhere
    from commitlake.tools.cli.questions import ask

    receipts = f"{settings.receipts_place}/receipts"
    return ask(settings, lambda tables: everywhere.find(tables, receipts, keys), limit, as_json)


@command
def topics(settings: Config, limit: Limit = 1_000, as_json: AsJson = False) -> int:
    """List the topics: messages, bytes, files.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.reading.questions import overview
    from commitlake.tools.cli.questions import ask

    return ask(settings, overview.topics, limit, as_json)


@command
def stats(settings: Config, since: tx.Since = None, as_json: AsJson = False) -> int:
    """Count by topic, state and reason, with the time to the end.

    Needs no Spark. Exit code 3 when there is nothing.
    """
    from commitlake.reading.questions import overview
    from commitlake.tools.cli.questions import ask

    return ask(settings, lambda tables: overview.stats(tables, _ago(since), now_ms()), _MOST_STATS, as_json)


@command
def doctor(
    settings: Config,
    make_room: bool = flag("--make-room", "First delete the file that a coordinator keeps for a full disk."),
    as_json: AsJson = False,
) -> int:
    """Check the health of the warehouse and Kafka.

    Needs no Spark. Exit code 1 when something needs a look.
    """
    from commitlake.tools import doctor as health

    if make_room:
        health.make_room(settings)
    return health.show(settings, as_json)


@command
def backup(
    settings: Config,
    to: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where the copy goes; it must not exist yet.")],
) -> None:
    """Copy the warehouse as of one moment.

    The coordinator may run. Needs no Spark. A coordinator that starts on the copy continues from the newest complete
    batch, with what Kafka has since. Consumer groups are ahead of the copy: rewind them.
    """
    from commitlake.tools.backup import backup as copied

    found = copied(settings.warehouse, to)
    until = f"all up to batch {found.batch_id} and landing {found.landing_id}"
    typer.echo(f"{found.tables} tables, {found.bytes:,} bytes: {until}")


@command
def report(
    settings: Config,
    context: typer.Context,
    out: Path | None = optional("--out", "FILE", "Write the page there."),
    since: int | None = optional("--since", "TIME", "Time range; default 24h.", parser=tx.length),
    serve: bool = flag("--serve", "Serve it on this machine, until Ctrl-C."),
    port: int = optional("--port", "PORT", "For --serve; 0 for any.", 0),
    actions: bool = flag("--actions", "With --serve: list what hangs, resume and recall."),
) -> int:
    """Write a report of the last hours, one HTML file, or serve it.

    Needs no Spark, and the page no network.
    """
    if (out is None) == (not serve) or (actions and not serve):
        msg = "give one of --out and --serve; --actions needs --serve"
        raise typer.BadParameter(msg, context)
    from commitlake.tools.cli import report as pages

    length = since or DAY_MS
    return pages.write(settings, length, out) if out else pages.serve(settings, length, port, with_actions=actions)


@command
def delayed(
    settings: Config,
    topic: tx.Topic = None,
    keys: tx.Keys = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> int:
    """List delayed messages that are waiting, the first due first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.reading.questions.delayed import waiting
    from commitlake.tools.cli.questions import ask

    return ask(settings, lambda tables: waiting(tables, topic, keys), limit, as_json)


@command
def recall(
    settings: Config,
    topic: Topic,
    keys: Annotated[str, option("--keys", "KEY", "Only with this business key.")],
    dry_run: tx.DryRun = False,
    yes: tx.Yes = False,
) -> int:
    """Recall delayed messages by their business key.

    Shows them and asks before it sends. Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import bulk

    return bulk.recall(settings, topic, keys, dry_run=dry_run, ask=not yes)


COMMANDS = (
    *(demo, find, rejected, topics, stats, doctor, backup, report),
    *(send, consume, delayed, recall, unfinished, groups, send_again, gateway, iceberg),
)
"""In the order in which `--help` lists them."""
