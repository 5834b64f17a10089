"""The work of `commitlake iceberg`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from commitlake.config import Config
from commitlake.config.keys import masked
from commitlake.config.secret_references import resolve
from commitlake.config.terminal import counted, printable
from commitlake.errors import ConfigError, SetupError, installed_by
from commitlake.reading.questions.tables import opened
from commitlake.tools.cli.questions import FOUND, NOTHING

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def run(settings: Config, catalog: str, namespace: str, topics: Sequence[str], properties: Sequence[str]) -> int:
    """Bring the Iceberg tables of topics to Delta's newest versions; returns the exit code."""
    if importlib.util.find_spec("pyiceberg") is None:
        msg = f"the Python module pyiceberg is missing; install it with {installed_by('iceberg')}"
        raise SetupError(msg)
    from commitlake.tools.iceberg import follow

    with opened(settings) as tables:
        names = topics or tables.listed_topics()
    there, code = _catalog(catalog, properties), FOUND if names else NOTHING
    for topic in names:
        try:
            done = follow(settings, there, namespace, topic)
            files = f"{counted(done.added, 'file')} added, {done.removed} removed"
            print(printable(f"{topic}: version {done.version} of Delta's table, {files}"), flush=True)
        except Exception as error:  # pyiceberg's have no class of their own; other topics go on
            print(printable(f"{topic}: {_told(error)}; the next run does the rest"), file=sys.stderr)
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
