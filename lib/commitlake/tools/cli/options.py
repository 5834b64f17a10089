"""Options that several commands share, and the configuration that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from commitlake.config import Config

Conf = Annotated[
    str | None,
    typer.Option(
        "--conf", metavar="FILE", help="The coordinator's YAML file; what it leaves out has its default.",
        show_default=False,
    ),
]  # fmt: skip
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Overrides the file; can be given several times.", show_default=False
    ),
]
Master = Annotated[str, typer.Option("--master", metavar="URL", envvar="MASTER", help="Spark's master.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Show at most N.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh every 2 s, until Ctrl-C.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the spark-submit command without running it.")]

LOCAL = "local[*]"
"""The default of `Master`."""


def load(conf: str | None, sets: Sequence[str] | None) -> Config:
    """Return the configuration that `Conf`, the environment and `Sets` make.

    Raises:
        ConfigError: the file is not readable, a key is unknown or a value is not allowed.
    """
    from commitlake import config  # not needed for `--help`

    return config.load(conf, sets or ())


def with_address(settings: Config) -> Config:
    """The configuration with the address of its embedded broker; without a fixed port only its coordinator knows it.

    Raises:
        ConfigError: `kafka.bootstrap_servers` is `embedded`, with any free port.
    """
    return replace(settings, kafka=settings.kafka.with_address())
