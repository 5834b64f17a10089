"""The command `commitlake`: arguments and help of all its commands.

Nothing here imports Spark. A command first checks its arguments and the configuration. Then it continues in Spark's
driver (`in_driver`), where its work is done (`commands`), or it needs no Spark (`without_spark`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from commitlake.config import Config, databricks
from commitlake.errors import CommitLakeError, RecordError, SetupError, WarehouseError, installed_by, root_reason
from commitlake.protocol.encoding import Position
from commitlake.protocol.version import __version__
from commitlake.reading import damage
from commitlake.spark import preflight, process
from commitlake.tools.cli import database, tx, without_spark
from commitlake.tools.cli.options import command, flag, of_driver, option, optional, with_address

app = typer.Typer(
    context_settings={"help_option_names": ["--help", "-h"]},
    add_completion=False,
    rich_markup_mode=None,  # boxes cut words in a log, and importing rich takes longer than all the rest of a `--help`
    pretty_exceptions_enable=False,  # they may show local variables, and those hold secrets
)


_SCRIPT = Path(__file__).with_name("__main__.py")
_LAUNCH_ONLY = ("master", "dry_run")
"""Parameters of the launch; the command in the driver does not get them."""
_OF_CONSUMERS = ("deltalake", "duckdb", "pyarrow", "sqlglot")
"""Modules of the extra `consumer`, with which all commands work that need no Spark."""


class AdminDecision(StrEnum):
    """A decision of an administrator."""

    RESUME = "resume"
    COMMIT = "commit"
    ROLLBACK = "rollback"


def main(*words: str) -> None:
    """Run the command line, after `words`, and exit with its code; on Databricks, where each exit fails, not with 0."""
    try:
        _main(words)
    except SystemExit as end:
        if end.code or not databricks.is_here():
            raise


def _main(words: Sequence[str]) -> None:
    with process.short_errors():
        try:
            app([*words, *sys.argv[1:]], prog_name="commitlake")
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module == "commitlake":
                raise
            extra = "consumer" if module in _OF_CONSUMERS else "all"
            msg = f"the Python module {error.name} is missing; install it with {installed_by(extra)}"
            raise SetupError(msg) from error
        except Exception as error:
            reason = root_reason(error)
            if isinstance(error, CommitLakeError) or ".parquet" not in reason:
                raise
            raise WarehouseError(damage.of_reading(reason)) from error  # Spark's error; other readers name the table


@contextmanager
def in_driver(
    context: typer.Context, *, long_lived: bool = False, avro: bool = False, exit_when_stopped: int = process.STOPPED
) -> Iterator[None]:
    """Run the block in Spark's driver; elsewhere run the same command in a driver, and exit with its code.

    Args:
        context: of the command, whose parameters are valid.
        long_lived: whether it runs for minutes or more, so that top speed beats a quick start.
        avro: whether it parses Avro.
        exit_when_stopped: exit code after SIGTERM or SIGINT, until the command calls `process.stop_on_signals`.

    Raises:
        SetupError: no fitting Java or Spark, or jars that cannot be resolved.
        typer.Exit: the driver has ended.
    """
    if process.is_driver() and not context.params["dry_run"]:
        with process.exit_on_signals(exit_when_stopped):
            yield
        return
    from commitlake.spark import submit  # not needed for `--help`

    code = submit.launch(
        _SCRIPT,
        _command_line(context),
        name=f"commitlake-{context.info_name}",
        master=context.params["master"],
        short_lived=not long_lived,
        avro=avro,
        dry_run=context.params["dry_run"],
    )
    raise typer.Exit(code)


def _command_line(context: typer.Context) -> list[str]:
    """The words that make the same command in the driver."""
    options, arguments = [], []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in _LAUNCH_ONLY or value is None or value is False:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            options.append(parameter.opts[0])
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            options += [f"{parameter.opts[0]}={each}" for each in values]
    return [str(context.info_name), *options, *(["--", *arguments] if arguments else [])]


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"commitlake {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def alone(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """RocketMQ's transactional messages on Kafka, Spark and Delta Lake."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _runs(settings: Config) -> bool:
    from commitlake.config.locations import is_local
    from commitlake.reading.questions import liveness

    return is_local(settings.warehouse) and liveness.runs(settings)


@app.command()
@of_driver
def run(
    settings: Config,
    context: typer.Context,
    available_now: bool = flag("--available-now", "Process what is there, then end."),
    standby: bool = flag("--standby", "Wait until no other coordinator runs on the warehouse, then take over."),
) -> None:
    """Run the coordinator, until SIGTERM or Ctrl-C."""
    from commitlake.spark import session  # not needed for `--help`

    launch = context.params
    if not launch["dry_run"] and not process.is_driver() and not session.is_cluster_mode(launch["master"], ["run"]):
        preflight.check_coordinator(settings, is_shared=lambda: standby or available_now or _runs(settings))
    with in_driver(context, long_lived=True, avro=settings.topics.has_avro, exit_when_stopped=0):
        from commitlake.tools.cli import commands

        commands.run(settings, available_now=available_now, standby=standby)


@app.command()
@of_driver
def stop(settings: Config, context: typer.Context) -> None:
    """Stop the coordinator, wherever it runs.

    The command waits until the coordinator has ended or a standby has taken over. Exit code 3 when no coordinator runs.
    """
    with in_driver(context):
        from commitlake.tools.cli import commands

        raise typer.Exit(commands.stop(settings))


@app.command()
@of_driver
def ledger(
    settings: Config,
    context: typer.Context,
    transaction_id: Annotated[
        str | None,
        typer.Argument(metavar="TRANSACTION_ID", help="Show its history, in time order.", show_default=False),
    ] = None,
    pending: bool = flag("--pending", "Show the transactions without an end, the oldest first."),
    summary: bool = flag("--summary", "Count by topic and state, and show whether the counts agree."),
) -> None:
    """Show the history of a transaction, or counts.

    Exit code 1 when there is nothing to show, or when counts do not agree.
    """
    if [transaction_id is not None, pending, summary].count(True) != 1:
        msg = "give one of TRANSACTION_ID, --pending and --summary"
        raise typer.BadParameter(msg, context)
    with in_driver(context):
        from commitlake.tools.cli import commands

        raise typer.Exit(commands.show_ledger(settings, transaction_id, counts=summary))


@app.command()
@of_driver
def audit(settings: Config, context: typer.Context) -> None:
    """Compare all tables, message by message.

    Exit code 0 only when they agree.
    """
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
@of_driver
def admin(
    settings: Config,
    context: typer.Context,
    decision: Annotated[AdminDecision, typer.Argument(metavar="DECISION", help="resume, commit or rollback")],
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION_ID")],
    remark: Annotated[str, option("--remark", "TEXT", "Why; kept in the table op.")],
    at: Position | None = optional(
        "--at", "QUEUE-OFFSET", "Its first half message; looked up by default.", parser=_position
    ),
) -> None:
    """Reopen a discarded transaction, or end a pending one by force."""
    settings = with_address(settings)
    if at is None or context.params["dry_run"]:
        with in_driver(context):
            from commitlake.tools.cli import commands

            at = commands.first_half_message(settings, transaction_id)
    from commitlake.tools.audit.admin import send

    record = send(settings.kafka, decision.name, transaction_id, at, remark)
    print(f"sent {decision.name} for the transaction at {at}: {settings.kafka.topic('admin')} {record}")
    print(f"in some seconds `commitlake tx show {transaction_id}` shows the result")


@app.command()
@of_driver
def maintain(settings: Config, context: typer.Context) -> None:
    """Delete old rows, compact tables, remove unused files.

    A running coordinator does this by itself. On a local warehouse the command works only while none runs. Exit code 1
    when a table failed.
    """
    with in_driver(context, long_lived=True):
        from commitlake.tools.cli import commands

        raise typer.Exit(commands.maintain(settings))


@app.command()
@of_driver
def erase(
    settings: Config,
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    remark: Annotated[str, option("--remark", "TEXT", "Why; kept in the tables' history.")],
    keys: str | None = optional("--keys", "KEY", "Messages with this business key."),
    where: str | None = optional("--where", "SQL", "Messages whose columns fit, in Spark's SQL."),
    yes: bool = flag("--yes", "Erase them; without it they are only counted."),
) -> None:
    """Erase what messages say, such as those of one person.

    This deletes bodies, properties and keys from all tables, and keeps ids, offsets and states. It works only while no
    coordinator runs. Exit code 3 when no message fits.
    """
    if (keys is None) == (where is None) or not (keys or where or "").strip():
        msg = "give one of --keys and --where, with a text"
        raise typer.BadParameter(msg, context)
    with in_driver(context, long_lived=True):
        from commitlake.tools.cli import commands
        from commitlake.tools.erase import ToErase

        raise typer.Exit(commands.erase(settings, ToErase(topic, keys, where), remark, sure=yes))


app.add_typer(tx.app, name="tx")
app.add_typer(database.app, name="database")
for each in without_spark.COMMANDS:
    app.command()(each)


@app.command("config")
@command
def show_config(settings: Config) -> None:
    """Print the configuration, with secrets masked. A rule of `checks` that can't be read is an error."""
    print(settings.describe(), flush=True)
    if settings.checks and find_spec("sqlglot"):  # an extra, which a client's installation may lack
        from commitlake.coordinator.resolving.rules import rule_of

        for group, given in settings.checks.items():
            rule_of(group, given, settings.transaction.timeout_ms)
