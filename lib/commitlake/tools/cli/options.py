"""Options that several commands share, and the configuration that they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from commitlake.config import Config, load


def option(name: str, metavar: str | None, text: str, **how: Any) -> Any:
    """An option with its help, for an annotation."""
    return typer.Option(name, metavar=metavar, help=text, **how)


def optional(name: str, metavar: str, text: str, default: object = None, **how: Any) -> Any:
    """An option with its help and its default, in place of a parameter's default."""
    return typer.Option(default, name, metavar=metavar, help=text, **how)


def flag(name: str, text: str) -> Any:
    """An option without a value, in place of a parameter's default."""
    return typer.Option(False, name, help=text)


Conf = Annotated[
    str | None,
    option("--conf", "FILE", "The coordinator's YAML file; what it leaves out has its default.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    option("--set", "KEY=VALUE", "Overrides the file; can be given several times.", show_default=False),
]
Master = Annotated[str, option("--master", "URL", "Spark's master.", envvar="MASTER")]
Limit = Annotated[int, option("--limit", "N", "Show at most N.", min=1)]
AsJson = Annotated[bool, option("--json", None, "Print one JSON object per line.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Group = Annotated[str, option("--group", "GROUP", "The group of consumers.")]
Tags = Annotated[str | None, option("--tags", "TAGS", "Tags joined by ||.")]
Where = Annotated[str | None, option("--where", "SQL", "On properties, or value.FIELD.")]
Watch = Annotated[bool, option("--watch", None, "Refresh every 2 s, until Ctrl-C.")]
DryRun = Annotated[bool, option("--dry-run", None, "Print the spark-submit command without running it.")]

LOCAL = "local[*]"
"""The default of `Master`."""


def command(work: Callable[..., int | None], *, in_driver: bool = False) -> Callable[..., None]:
    """A command that does `work`: with the configuration that `--conf` and `--set` make, and options of its own.

    It exits with the code that `work` returns; None is 0. With `in_driver` it has the options of a launch, too.
    """

    def run(conf: Conf = None, sets: Sets = None, **given: Any) -> None:
        raise typer.Exit(work(load(conf, sets or ()), **{each.name: given[each.name] for each in own}) or 0)

    (_, *own), (*shared, _), launch = map(_parameters, (work, run, _launch))
    run.__signature__ = inspect.Signature([*own, *shared, *(launch if in_driver else ())])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = work.__name__, work.__doc__
    return run


def _launch(master: Master = LOCAL, dry_run: DryRun = False) -> None:
    """The options of a launch, which `app.in_driver` takes from the context."""


def _parameters(work: Callable[..., object]) -> list[inspect.Parameter]:
    return [*inspect.signature(work, eval_str=True).parameters.values()]


of_driver = partial(command, in_driver=True)
"""For a command that continues in Spark's driver (`app.in_driver`)."""


def with_address(settings: Config) -> Config:
    """The configuration with the address of its embedded broker; without a fixed port only its coordinator knows it.

    Raises:
        ConfigError: `kafka.bootstrap_servers` is `embedded`, with any free port.
    """
    return replace(settings, kafka=settings.kafka.with_address())
