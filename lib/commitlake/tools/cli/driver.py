"""The way of a command into Spark's driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from commitlake.spark import process
from commitlake.tools.cli.options import LAUNCH_ONLY

SCRIPT = Path(__file__).with_name("__main__.py")


@contextmanager
def in_driver(
    context: typer.Context, *, long_lived: bool = False, exit_when_stopped: int = process.STOPPED
) -> Iterator[None]:
    """Run the block in Spark's driver; elsewhere run the same command in a driver, and exit with its code.

    Args:
        context: of the command, whose parameters are valid.
        long_lived: whether it runs for minutes or more, so that top speed beats a quick start.
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
        SCRIPT,
        command_line(context),
        name=f"commitlake-{context.info_name}",
        master=context.params["master"],
        short_lived=not long_lived,
        dry_run=context.params["dry_run"],
    )
    raise typer.Exit(code)


def command_line(context: typer.Context) -> list[str]:
    """Return the words that make the same command in the driver."""
    options, arguments = [], []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in LAUNCH_ONLY or value is None or value is False:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            options.append(parameter.opts[0])
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            options += [f"{parameter.opts[0]}={each}" for each in values]
    return [str(context.info_name), *options, *(["--", *arguments] if arguments else [])]
