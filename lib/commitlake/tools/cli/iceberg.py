"""The command `commitlake iceberg`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from commitlake.config import Config
from commitlake.config.keys import masked
from commitlake.config.secret_references import resolve
from commitlake.config.terminal import counted, printable
from commitlake.errors import ConfigError, SetupError, installed_by
from commitlake.tools.cli.options import command, option, optional
from commitlake.tools.cli.output import FOUND, NOTHING

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@command
def iceberg(
    settings: Config,
    catalog: Annotated[str, option("--catalog", "URI", "Of Iceberg: sqlite, postgresql, http, thrift; or env:NAME.")],
    namespace: str = optional("--namespace", "NAME", "Where the tables are in the catalog.", "commitlake"),
    topic: list[str] | None = optional("--topic", "TOPIC", "Only this topic; can be given several times."),
    properties: list[str] | None = optional(
        "--property", "KEY=VALUE", "A property of pyiceberg's catalog; a value may be env:NAME."
    ),
) -> int:
    """Let readers of Iceberg read topics, over Delta's files.

    It writes Iceberg's metadata up to Delta's newest version, so run it regularly. Needs no Spark. Exit code 3 when
    there is no topic.
    """
    if importlib.util.find_spec("pyiceberg") is None:
        msg = f"the Python module pyiceberg is missing; install it with {installed_by('iceberg')}"
        raise SetupError(msg)
    from commitlake.reading.questions.tables import opened
    from commitlake.tools.iceberg import follow

    with opened(settings) as tables:
        names = topic or tables.listed_topics()
    there, code = _catalog(catalog, properties or []), FOUND if names else NOTHING
    for name in names:
        try:
            done = follow(settings, there, namespace, name)
            files = f"{counted(done.added, 'file')} added, {done.removed} removed"
            print(printable(f"{name}: version {done.version} of Delta's table, {files}"), flush=True)
        except Exception as error:  # pyiceberg's have no class of their own; other topics go on
            print(printable(f"{name}: {_told(error)}; the next run does the rest"), file=sys.stderr)
            code = 1
    return code


def _catalog(uri: str, properties: Sequence[str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    given = {"uri": resolve("--catalog", uri)}
    for each in properties:
        name, equals, value = each.partition("=")
        if not equals:
            msg = f"--property {name}: '=' is missing; write --property KEY=VALUE"
            raise ConfigError(msg)
        given[name] = resolve(f"--property {name}", value)
    try:
        return load_catalog("commitlake", **given)
    except Exception as error:
        msg = f"--catalog: {_told(error)}; give what pyiceberg takes as uri, such as sqlite:////lake/iceberg.db"
        raise ConfigError(msg) from None  # the chain shows the password


def _told(error: Exception) -> str:
    """An error on one line, without the password of an address."""
    return masked("", " ".join(str(error).split()))[:500] or type(error).__name__
