"""The command `commitlake`: arguments and help of all its commands.

Nothing here imports Spark. A command checks its arguments and the configuration first, and only then goes on in Spark's
driver (`in_driver`), where its work is done (`commands`).
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from commitlake.errors import RecordError, SetupError
from commitlake.protocol.durations import DAY_MS
from commitlake.protocol.encoding import Position
from commitlake.spark import process
from commitlake.tools.cli import tx
from commitlake.tools.cli.driver import in_driver
from commitlake.tools.cli.options import LOCAL, AsJson, Conf, DryRun, Limit, Master, Sets, load, need_address

app = typer.Typer(
    help="RocketMQ's transactional messages on Kafka, Spark and Delta Lake.",
    context_settings={"help_option_names": ["--help", "-h"]},
    add_completion=False,
    rich_markup_mode=None,  # boxes cut words in a log, and importing rich takes longer than all the rest of a `--help`
    pretty_exceptions_enable=False,  # they may show local variables, and those hold secrets
)


class AdminDecision(StrEnum):
    """What an administrator may decide."""

    RESUME = "resume"
    COMMIT = "commit"
    ROLLBACK = "rollback"


def main(*words: str) -> None:
    """Run the command line, after `words`, and exit with its code."""
    with process.short_errors():
        try:
            app([*words, *sys.argv[1:]], prog_name="commitlake")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "commitlake":
                raise
            msg = f"the Python module {error.name} is missing; install it with pip install 'commitlake[all]'"
            raise SetupError(msg) from error


@app.command()
def run(
    context: typer.Context,
    conf: Conf = None,
    sets: Sets = None,
    available_now: Annotated[bool, typer.Option("--available-now", help="Work off what is there, then end.")] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until no other coordinator runs on the warehouse, then take over.")
    ] = False,
    master: Master = LOCAL,
    dry_run: DryRun = False,
) -> None:
    """Run the coordinator, until SIGTERM or Ctrl-C."""
    settings = load(conf, sets)
    with in_driver(context, long_lived=True, exit_when_stopped=0):
        from commitlake.tools.cli import commands

        commands.run(settings, available_now=available_now, standby=standby)


@app.command()
def demo(
    context: typer.Context,
    place: Annotated[
        Path, typer.Option("--dir", metavar="DIRECTORY", help="For the tables; an earlier demo's are removed.")
    ] = Path("demo"),
    master: Master = LOCAL,
    dry_run: DryRun = False,
) -> None:
    """Run the demo, which ends by itself within two minutes.

    A broker, the coordinator, and an order service that also crashes. Exit code 0 only when all agree at the end.
    """
    with in_driver(context):
        from commitlake.tools.demo import run

        raise typer.Exit(run.run(place.absolute()))


@app.command()
def ledger(
    context: typer.Context,
    transaction_id: Annotated[
        str | None,
        typer.Argument(metavar="TRANSACTION_ID", help="Show its history, in time order.", show_default=False),
    ] = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="Show the transactions without an end, the oldest first.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Count by topic and state, and show whether the counts agree.")
    ] = False,
    conf: Conf = None,
    sets: Sets = None,
    master: Master = LOCAL,
    dry_run: DryRun = False,
) -> None:
    """Show what became of transactions.

    Exit code 1 when there is nothing to show, or when counts do not agree.
    """
    if [transaction_id is not None, pending, summary].count(True) != 1:
        msg = "give one of TRANSACTION_ID, --pending and --summary"
        raise typer.BadParameter(msg, context)
    settings = load(conf, sets)
    with in_driver(context):
        from commitlake.tools.cli import commands

        if transaction_id is not None:
            raise typer.Exit(commands.transaction(settings, transaction_id))
        raise typer.Exit(commands.summary(settings) if summary else commands.pending(settings))


@app.command()
def audit(
    context: typer.Context, conf: Conf = None, sets: Sets = None, master: Master = LOCAL, dry_run: DryRun = False
) -> None:
    """Compare all tables, message by message.

    Exit code 0 only when they agree.
    """
    settings = load(conf, sets)
    with in_driver(context, long_lived=True):
        from commitlake.tools.cli import commands

        raise typer.Exit(commands.audit(settings))


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except RecordError as error:
        msg = f"{text!r} is not QUEUE-OFFSET"
        raise typer.BadParameter(msg) from error


@app.command()
def admin(
    context: typer.Context,
    decision: Annotated[AdminDecision, typer.Argument(metavar="DECISION", help="resume, commit or rollback")],
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION_ID")],
    remark: Annotated[str, typer.Option("--remark", metavar="TEXT", help="Why; kept in the table op.")],
    at: Annotated[
        Position | None,
        typer.Option("--at", parser=_position, metavar="QUEUE-OFFSET", help="Its first half message; else looked up."),
    ] = None,
    conf: Conf = None,
    sets: Sets = None,
    master: Master = LOCAL,
    dry_run: DryRun = False,
) -> None:
    """Reopen a discarded transaction, or end a pending one by force."""
    settings = load(conf, sets)
    need_address(settings)
    if at is None or dry_run:
        with in_driver(context):
            from commitlake.tools.cli import commands

            at = commands.first_half_message(settings, transaction_id)
    from commitlake.tools.audit.admin import send

    record = send(settings.kafka, decision.name, transaction_id, at, remark)
    print(f"{decision.name} of the transaction at {at} stands in {settings.kafka.topic('admin')} at {record}")
    print("the command `ledger` with its transaction id shows the result, within some seconds")


@app.command()
def maintain(
    context: typer.Context, conf: Conf = None, sets: Sets = None, master: Master = LOCAL, dry_run: DryRun = False
) -> None:
    """Delete old rows, compact tables, remove unused files.

    A running coordinator does it by itself; on a local warehouse this works only while none runs. Exit code 1 when a
    table failed.
    """
    settings = load(conf, sets)
    with in_driver(context, long_lived=True):
        from commitlake.tools.cli import commands

        raise typer.Exit(commands.maintain(settings))


app.add_typer(tx.app, name="tx")


@app.command()
def rejected(
    reason: Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only these, as BAD_OP.")] = None,
    since: tx.Since = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Show records that changed nothing, the newest first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import questions

    raise typer.Exit(questions.rejected(load(conf, sets), reason, since, limit, as_json))


@app.command()
def topics(limit: Limit = 1_000, as_json: AsJson = False, conf: Conf = None, sets: Sets = None) -> None:
    """Show the topics: messages, bytes, files.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import questions

    raise typer.Exit(questions.topics(load(conf, sets), limit, as_json))


@app.command()
def stats(since: tx.Since = None, as_json: AsJson = False, conf: Conf = None, sets: Sets = None) -> None:
    """Count by topic, state and reason, with the time to the end.

    Needs no Spark. Exit code 3 when there is nothing.
    """
    from commitlake.tools.cli import questions

    raise typer.Exit(questions.stats(load(conf, sets), since, as_json))


@app.command()
def doctor(as_json: AsJson = False, conf: Conf = None, sets: Sets = None) -> None:
    """Look whether the warehouse and its Kafka are well.

    Needs no Spark. Exit code 1 when something needs a look.
    """
    from commitlake.tools.cli import health

    raise typer.Exit(health.doctor(load(conf, sets), as_json))


@app.command()
def report(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the page there.")] = None,
    since: Annotated[
        int | None, typer.Option("--since", parser=tx.length, metavar="TIME", help="What it is about; default 24h.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="For --serve; 0 for any.")] = 0,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Make a page about the last hours: one HTML file.

    Needs no Spark, and the page no network.
    """
    if (out is None) == (not serve):
        msg = "give one of --out and --serve"
        raise typer.BadParameter(msg, context)
    settings = load(conf, sets)
    from commitlake.tools.cli import report as pages

    length = since or DAY_MS
    raise typer.Exit(pages.write(settings, length, out) if out else pages.serve(settings, length, port))


Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
def delayed(
    topic: tx.Topic = None,
    keys: tx.Keys = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Show delayed messages that are waiting, the first due first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import delayed as messages

    raise typer.Exit(messages.list_waiting(load(conf, sets), topic, keys, limit, as_json))


@app.command()
def recall(
    topic: Topic,
    keys: Annotated[str, typer.Option("--keys", metavar="KEY", help="Only with this business key.")],
    dry_run: tx.DryRun = False,
    yes: tx.Yes = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Recall delayed messages by their business key.

    Needs no Spark. Shows them first, and asks. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import delayed as messages

    raise typer.Exit(messages.recall(load(conf, sets), topic, keys, dry_run=dry_run, ask=not yes))


Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="The group of consumers.")]


@app.command()
def unfinished(
    topic: Topic,
    group: Group,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAGS", help="Only these, joined by ||.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only these: a condition on properties.")
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Show what a group of consumers has not done, the oldest first.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import consumers

    raise typer.Exit(consumers.unfinished(load(conf, sets), topic, group, tags, where, limit, as_json))


@app.command()
def groups(
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="For --rewind and --delete.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="For --rewind and --delete.")] = None,
    rewind: Annotated[
        str | None,
        typer.Option("--rewind", metavar="WHERE", help="Go on there: first, newest, ms since epoch or a time in UTC."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget a group whose instances have ended.")] = False,
    as_json: AsJson = False,
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Show how far groups of consumers are behind, or change one.

    Needs no Spark. Exit code 3 when there are none.
    """
    settings = load(conf, sets)
    from commitlake.tools.cli import consumers

    if rewind is None and not delete:
        raise typer.Exit(consumers.groups(settings, as_json))
    if topic is None or group is None or (delete and rewind is not None):
        msg = "give --topic and --group with one of --rewind and --delete"
        raise typer.BadParameter(msg)
    done = (
        consumers.delete(settings, topic, group) if delete else consumers.rewind(settings, topic, group, rewind or "")
    )
    raise typer.Exit(done)


@app.command("send-again")
def send_again(
    topic: Topic,
    group: Group,
    positions: Annotated[
        list[str] | None, typer.Argument(metavar="[POSITION]...", help="As `unfinished` shows them; without any, all.")
    ] = None,
    remark: Annotated[str, typer.Option("--remark", metavar="TEXT", help="Why; kept in the receipt.")] = "",
    conf: Conf = None,
    sets: Sets = None,
) -> None:
    """Let a group of consumers have its dead letters once more.

    Needs no Spark. Exit code 3 when there are none.
    """
    from commitlake.tools.cli import consumers

    raise typer.Exit(consumers.send_again(load(conf, sets), topic, group, positions or [], remark))


@app.command("config")
def show_config(conf: Conf = None, sets: Sets = None) -> None:
    """Print the configuration, secrets masked."""
    print(load(conf, sets).describe())
