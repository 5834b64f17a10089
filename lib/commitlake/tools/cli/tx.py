"""The commands `commitlake tx ...`: lists, histories and forced decisions, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Annotated

import typer

from commitlake.config import Config
from commitlake.config.values import duration
from commitlake.protocol.states import Reason
from commitlake.tools.cli.options import AsJson, Limit, Watch, command, option

app = typer.Typer(
    help="Transactions: lists, histories, forced decisions. Needs no Spark.",
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
    no_args_is_help=True,
)


class StateFilter(StrEnum):
    """The state of a transaction."""

    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    DISCARDED = "DISCARDED"


def length(text: str) -> int:
    """A duration such as `1h`, in ms."""
    try:
        return duration()(text)
    except ValueError as error:
        msg = f"{text!r} is no duration; give {error}"
        raise typer.BadParameter(msg) from error


def one_of(allowed: Collection[str]) -> Callable[[str], str]:
    """A parser of texts that accepts only those of `allowed`."""

    def parse(text: str) -> str:
        if text not in allowed:
            msg = f"{text!r} is not one of {', '.join(allowed)}"
            raise typer.BadParameter(msg)
        return text

    return parse


_STATES = f"One of {', '.join(StateFilter)}; can be given several times."
States = Annotated[list[StateFilter] | None, option("--state", "STATE", _STATES, case_sensitive=False)]
Group = Annotated[str | None, option("--group", "GROUP", "Only of this producer group.")]
Topic = Annotated[str | None, option("--topic", "TOPIC", "Only for this topic.")]
WithReason = Annotated[
    str | None,
    option(
        "--reason",
        "REASON",
        "Only with this reason, for example CHECK_MAX.",
        parser=one_of([reason.name for reason in Reason]),
    ),
]
OlderThan = Annotated[
    int | None, option("--older-than", "TIME", "Only what was stored longer ago, such as 1h.", parser=length)
]
Since = Annotated[int | None, option("--since", "TIME", "Time range, for example 24h; default all.", parser=length)]
Keys = Annotated[str | None, option("--keys", "KEY", "Only with this business key; `find` looks everywhere.")]
Where = Annotated[str | None, option("--where", "SQL", "A condition on columns of half and transactions.")]


@app.command("list")
@command
def list_(
    settings: Config,
    state: States = None,
    group: Group = None,
    topic: Topic = None,
    reason: WithReason = None,
    older_than: OlderThan = None,
    since: Since = None,
    keys: Keys = None,
    where: Where = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    watch: Watch = False,
) -> int:
    """List transactions, the newest first. Exit code 3 when there are none."""
    from commitlake.reading.questions.transactions import STATES, Wanted
    from commitlake.tools.cli import questions

    wanted = Wanted(tuple(state or STATES), group, topic, reason, older_than, since, keys, where)
    return questions.repeat(watch, lambda: questions.transactions(settings, wanted, limit, as_json))


@app.command()
@command
def show(
    settings: Config,
    transaction_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a transaction, or of one of its messages.")
    ],
    as_json: AsJson = False,
) -> int:
    """Show all that happened to a transaction, in time order. Exit code 3 when nothing is known of it."""
    from commitlake.tools.cli import questions

    return questions.history(settings, transaction_id, as_json)


@app.command()
@command
def hanging(
    settings: Config,
    older_than: OlderThan = None,
    group: Group = None,
    topic: Topic = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    watch: Watch = False,
) -> int:
    """List transactions pending for longer than transaction.timeout and three check intervals, the oldest first.

    Exit code 3 when there are none.
    """
    from commitlake.reading.questions.transactions import Wanted
    from commitlake.tools.cli import questions

    age = settings.transaction.hangs_after_ms if older_than is None else older_than
    wanted = Wanted((StateFilter.PENDING,), group, topic, older_than_ms=age)
    return questions.repeat(watch, lambda: questions.transactions(settings, wanted, limit, as_json, oldest_first=True))


ChangedStates = Annotated[
    list[StateFilter] | None,
    option("--state", "STATE", "May name only the state that the command changes.", case_sensitive=False),
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="TRANSACTION_ID", help="Or choose by filters.")]
Remark = Annotated[str, option("--remark", "TEXT", "Why; kept in the table op.")]
As = Annotated[str | None, option("--as", "NAME", "Who; kept with the remark. Default: your login.")]
DryRun = Annotated[bool, option("--dry-run", None, "Show what it would send, and send nothing.")]
Yes = Annotated[bool, option("--yes", None, "Do not ask.")]
Rate = Annotated[int, option("--rate", "N", "At most N decisions per second.", min=1)]
ExistsIn = Annotated[
    str | None, option("--exists-in", "TABLE", "Only what a Delta table has: 'delta:PATH ON keys = id'.")
]


def _command(decision: str, changes: StateFilter, text: str) -> None:
    def decide(
        settings: Config,
        remark: Remark,
        transaction_id: Ids = None,
        state: ChangedStates = None,
        group: Group = None,
        topic: Topic = None,
        reason: WithReason = None,
        older_than: OlderThan = None,
        since: Since = None,
        keys: Keys = None,
        where: Where = None,
        exists_in: ExistsIn = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        rate: Rate = 200,
        name: As = None,
    ) -> int:
        from commitlake.reading.questions.transactions import Wanted
        from commitlake.tools.cli import bulk

        if set(state or ()) - {changes}:
            msg = f"{decision} changes only what is {changes}; leave --state out"
            raise typer.BadParameter(msg, param_hint="--state")
        filters = (group, topic, reason, older_than, since, keys, where)
        if not transaction_id and not any(filters) and not exists_in:
            msg = "name transactions, or choose them by --where or another filter; --state alone does not choose"
            raise typer.BadParameter(msg)
        wanted = Wanted((changes,), *filters)
        told = f"{remark} (by {name or bulk.who()})"
        plan = bulk.BulkDecision(decision, wanted, tuple(transaction_id or ()), exists_in, told, rate)
        return bulk.run(settings, plan, dry_run=dry_run, ask=not yes)

    decide.__doc__ = f"{text}\n\nShows ten examples and asks before it sends. Exit code 3 when there are none."
    app.command(decision.lower())(command(decide))


_command("RESUME", StateFilter.DISCARDED, "Reopen discarded transactions.")
_command("COMMIT", StateFilter.PENDING, "Commit pending transactions by force.")
_command("ROLLBACK", StateFilter.PENDING, "Roll pending transactions back by force.")
