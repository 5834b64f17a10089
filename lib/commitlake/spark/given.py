"""The operator's arguments of spark-submit, merged with the settings that CommitLake needs.

Of two values Spark takes the last: `--jars` for an object store would replace Delta and the Kafka connector.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

VARIABLE = "COMMITLAKE_SPARK_ARGS"
_OPTIONS = {
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
    "--py-files": "spark.submit.pyFiles",
    "--archives": "spark.archives",
    "--files": "spark.files",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-memory": "spark.driver.memory",
    "--deploy-mode": "spark.submit.deployMode",
}
_JOINED = {
    "spark.jars": ",",
    "spark.submit.pyFiles": ",",
    "spark.archives": ",",
    "spark.files": ",",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.executor.extraClassPath": os.pathsep,
    "spark.executorEnv.PYTHONPATH": os.pathsep,
    "spark.yarn.appMasterEnv.PYTHONPATH": os.pathsep,
    "spark.yarn.dist.pyFiles": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
}
"""Settings that are lists, with the separator of their items."""


def settings(words: Sequence[str]) -> dict[str, str]:
    """The settings among arguments of spark-submit."""
    return dict(pair for pair, _ in _parsed(words) if pair)


def from_environment() -> list[str]:
    """The arguments of spark-submit that the operator gave."""
    return shlex.split(os.environ.get(VARIABLE, ""))


def defaults(home: Path) -> dict[str, str]:
    """The settings of Spark's own file, `spark-defaults.conf`."""
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = (re.match(r"\s*([^#\s=:]+)\s*[=:\s]\s*(.*?)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def arguments(own: Mapping[str, str], words: Sequence[str], home: Path) -> list[str]:
    """Arguments of spark-submit with the settings of both: lists are joined, else the operator's value wins.

    Args:
        own: the settings that CommitLake needs.
        words: the operator's arguments.
        home: Spark's home; lists of its `spark-defaults.conf` are joined, too.
    """
    below, above = defaults(home), settings(words)
    merged = {**own, **above}
    for name, between in _JOINED.items():
        values = [each[name] for each in (own, below, above) if each.get(name)]
        if values and (name in own or name in above):
            merged[name] = between.join(values)
    plain = [word for pair, consumed in _parsed(words) if not pair for word in consumed]
    return [*(part for name, value in merged.items() for part in ("--conf", f"{name}={value}")), *plain]


def _parsed(words: Sequence[str]) -> Iterator[tuple[tuple[str, str] | None, list[str]]]:
    """Each setting with the words that it consists of; None, with its word, for a word that is no setting."""
    rest = list(words)
    while rest:
        name, equals, value = rest[0].partition("=")
        is_known = name in _OPTIONS or name in ("--conf", "-c")
        taken = 1 if equals or not is_known else 2
        consumed, rest = rest[:taken], rest[taken:]
        if not is_known or len(consumed) < taken:
            yield None, consumed
            continue
        value = value if equals else consumed[1]
        if name in _OPTIONS:
            yield (_OPTIONS[name], value), consumed
        else:
            key, _, setting = value.partition("=")
            yield (key, setting), consumed
