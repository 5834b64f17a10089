"""The commands that need no Spark: arguments and help. Each checks arguments and configuration, then does its work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.states import REJECTED_REASONS
from commitlake.tools.cli import tx
from commitlake.tools.cli.options import LOCAL, AsJson, Conf, Limit, Master, Sets, load, with_address

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="The group of consumers.")]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="On properties, or value.FIELD.")]
_MOST_STATS = 10_000


def _ago(since_ms: int | None) -> int:
    """So long ago, ms since epoch, UTC; 0: all times count."""
    return 0 if since_ms is None else now_ms() - since_ms


def demo(
    place: Annotated[
        Path, typer.Option("--dir", metavar="DIRECTORY", help="Where its tables go; an earlier demo's are removed.")
    ] = Path("demo"),
    is_opened: Annotated[bool, typer.Option("--open", help="Open its report in a browser at the end.")] = False,
    master: Master = LOCAL,
) -> None:
    """Run the demo, which ends by itself in two to four minutes.

    It starts a broker, a coordinator that it kills, a standby that takes over, and an order service that crashes. Exit
    code 0 only if all tables agree at the end.
    """
    from commitlake.tools.cli import demo_directory

    raise typer.Exit(demo_directory.play(place.absolute(), master, is_opened=is_opened))


def rejected(
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason",
            parser=tx.one_of(REJECTED_REASONS),
            metavar="REASON",
            help="Only with this reason, for example BAD_OP.",
        ),
    ] = None,
    since: tx.Since = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """List rejected records, the newest first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.reading.questions import overview
    from commitlake.tools.cli.questions import ask

    settings = load(conf, sets)
    raise typer.Exit(ask(settings, lambda tables: overview.rejected(tables, reason, _ago(since)), limit, as_json))


def find(
    keys: Annotated[str, typer.Argument(metavar="KEY", help="A business key.")],
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Find a business key everywhere, in time order.

    Looks in transactions, delayed, visible and rejected messages, and receipts. Needs no Spark. Exit code 3 when
    nothing has the key.
    """
    from commitlake.reading.questions import find as everywhere
    from commitlake.tools.cli.questions import ask

    settings = load(conf, sets)
    receipts = f"{settings.receipts_place}/receipts"
    raise typer.Exit(ask(settings, lambda tables: everywhere.find(tables, receipts, keys), limit, as_json))


def topics(limit: Limit = 1_000, as_json: AsJson = False, conf: Conf = None, sets: Sets = None) -> None:
    """List the topics: messages, bytes, files.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.reading.questions import overview
    from commitlake.tools.cli.questions import ask

    raise typer.Exit(ask(load(conf, sets), overview.topics, limit, as_json))


def stats(since: tx.Since = None, as_json: AsJson = False, conf: Conf = None, sets: Sets = None) -> None:
    """Count by topic, state and reason, with the time to the end.

    Needs no Spark. Exit code 3 when there is nothing.
    """
    from commitlake.reading.questions import overview
    from commitlake.tools.cli.questions import ask

    settings = load(conf, sets)
    raise typer.Exit(ask(settings, lambda tables: overview.stats(tables, _ago(since), now_ms()), _MOST_STATS, as_json))


def doctor(
    make_room: Annotated[
        bool, typer.Option("--make-room", help="First delete the file that a coordinator keeps for a full disk.")
    ] = False,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Check the health of the warehouse and Kafka.

    Needs no Spark. Exit code 1 when something needs a look.
    """
    settings = load(conf, sets)
    from commitlake.tools import doctor as health

    if make_room:
        health.make_room(settings)
    raise typer.Exit(health.show(settings, as_json))


def backup(
    to: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where the copy goes; it must not exist yet.")],
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Copy the warehouse as of one moment.

    The coordinator may run. Needs no Spark. A coordinator that starts on the copy continues from the newest complete
    batch, with what Kafka has since. Consumer groups are ahead of the copy: rewind them.
    """
    from commitlake.tools.backup import backup as copied

    found = copied(load(conf, sets).warehouse, to)
    until = f"all up to batch {found.batch_id} and landing {found.landing_id}"
    typer.echo(f"{found.tables} tables, {found.bytes:,} bytes: {until}")


def report(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the page there.")] = None,
    since: Annotated[
        int | None, typer.Option("--since", parser=tx.length, metavar="TIME", help="Time range; default 24h.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="For --serve; 0 for any.")] = 0,
    actions: Annotated[
        bool,
        typer.Option("--actions", help="With --serve: list what hangs, resume and recall."),
    ] = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Write a report of the last hours, one HTML file, or serve it.

    Needs no Spark, and the page no network.
    """
    if (out is None) == (not serve) or (actions and not serve):
        msg = "give one of --out and --serve; --actions needs --serve"
        raise typer.BadParameter(msg, context)
    settings = load(conf, sets)
    from commitlake.tools.cli import report as pages

    length = since or DAY_MS
    raise typer.Exit(
        pages.write(settings, length, out) if out else pages.serve(settings, length, port, with_actions=actions)
    )


def delayed(
    topic: tx.Topic = None,
    keys: tx.Keys = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """List delayed messages that are waiting, the first due first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.reading.questions.delayed import waiting
    from commitlake.tools.cli.questions import ask

    raise typer.Exit(ask(load(conf, sets), lambda tables: waiting(tables, topic, keys), limit, as_json))


def send(
    topic: Topic,
    body: Annotated[str, typer.Argument(metavar="BODY", help="Sent as UTF-8.")],
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAG", help="What consumers filter by.")] = None,
    keys: Annotated[str | None, typer.Option("--keys", metavar="KEYS", help="Business keys.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="TIME", help="How much later: 10s, 3h.")] = None,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Send a message without a transaction.

    For a first try, and for scripts. Needs no Spark.
    """
    from commitlake.clients.producer.message import Message
    from commitlake.tools.cli import messages

    settings = with_address(load(conf, sets))
    message = Message(topic, body, tags=tags, keys=keys, delay_seconds=delay)
    raise typer.Exit(messages.send(settings, message))


def consume(
    topic: Topic,
    group: Group,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAGS", help="Tags joined by ||.")] = None,
    where: Where = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="End after N messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new messages, until Ctrl-C.")] = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Print a group's new messages, as JSON lines.

    A message is done once it is printed. Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import messages

    raise typer.Exit(messages.consume(load(conf, sets), topic, group, tags, where, limit, follow))


def recall(
    topic: Topic,
    keys: Annotated[str, typer.Option("--keys", metavar="KEY", help="Only with this business key.")],
    dry_run: tx.DryRun = False,
    yes: tx.Yes = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Recall delayed messages by their business key.

    Shows them and asks before it sends. Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import bulk

    raise typer.Exit(bulk.recall(load(conf, sets), topic, keys, dry_run=dry_run, ask=not yes))


def unfinished(
    topic: Topic,
    group: Group,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAGS", help="Tags joined by ||.")] = None,
    where: Where = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """List what a group has not finished, the oldest first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import consumers

    raise typer.Exit(consumers.unfinished(load(conf, sets), topic, group, tags, where, limit, as_json))


def groups(
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only groups of this topic.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only this group.")] = None,
    rewind: Annotated[
        str | None,
        typer.Option(
            "--rewind", metavar="WHERE", help="Continue at first, newest, 2h (ago), ms since epoch or a time in UTC."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete a group whose instances have ended.")] = False,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """List consumer groups and their lag; rewind or delete one.

    Needs no Spark. Exit code 3 when there are none.
    """
    settings = load(conf, sets)
    from commitlake.tools.cli import consumers

    if rewind is None and not delete:
        raise typer.Exit(consumers.groups(settings, topic, group, as_json))
    if topic is None or group is None or (delete and rewind is not None):
        msg = "give --topic and --group with one of --rewind and --delete"
        raise typer.BadParameter(msg)
    done = (
        consumers.delete(settings, topic, group) if delete else consumers.rewind(settings, topic, group, rewind or "")
    )
    raise typer.Exit(done)


def send_again(
    topic: Topic,
    group: Group,
    positions: Annotated[
        list[str] | None,
        typer.Argument(metavar="POSITION", help="As `unfinished` shows them; default all."),
    ] = None,
    remark: Annotated[str, typer.Option("--remark", metavar="TEXT", help="Why; kept in the receipt.")] = "",
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Send a group its dead letters again.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import consumers

    raise typer.Exit(consumers.send_again(load(conf, sets), topic, group, positions or [], remark))


def gateway(
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Port 0: any. Beyond this machine it needs --access-keys."),
    ] = "127.0.0.1:8081",
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="TLS: the certificate chain, PEM.")
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option("--private-key", metavar="FILE", help="TLS: its key, PEM.")
    ] = None,
    access_keys: Annotated[
        str | None,
        typer.Option("--access-keys", metavar="REFERENCE", help="Lines `key: secret`: file:/path or env:NAME."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="What sends: confluent, where it is installed, or kafka-python."),
    ] = None,
    fifo: Annotated[
        list[str] | None,
        typer.Option("--fifo", metavar="GROUP", help="A FIFO consumer group, or pattern; can be given several times."),
    ] = None,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Let RocketMQ 5's own clients send and consume, by gRPC.

    Needs no Spark; runs beside the coordinator, any number of times. Ends with SIGTERM or Ctrl-C.
    """
    from commitlake.tools.cli import gateway as process

    raise typer.Exit(process.run(load(conf, sets), listen, certificate, private_key, access_keys, engine, fifo or []))


def iceberg(
    catalog: Annotated[
        str, typer.Option("--catalog", metavar="URI", help="Of Iceberg: sqlite, postgresql, http, thrift; or env:NAME.")
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="Where the tables are in the catalog.")
    ] = "commitlake",
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; can be given several times.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="KEY=VALUE", help="A property of pyiceberg's catalog; a value may be env:NAME."
        ),
    ] = None,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Let readers of Iceberg read topics, over Delta's files.

    It writes Iceberg's metadata up to Delta's newest version, so run it regularly. Needs no Spark. Exit code 3 when
    there is no topic.
    """
    from commitlake.tools.cli import iceberg as tables

    raise typer.Exit(tables.run(load(conf, sets), catalog, namespace, topic or [], properties or []))


COMMANDS = (
    *(demo, find, rejected, topics, stats, doctor, backup, report),
    *(send, consume, delayed, recall, unfinished, groups, send_again, gateway, iceberg),
)
"""In the order in which `--help` lists them."""
