"""The operator's arguments of spark-submit, merged with the settings that CommitLake needs.

Of two values Spark takes the last: `--jars` for an object store would replace Delta and the Kafka connector.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
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
    return _parsed(words)[0]


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
    below, (above, plain) = defaults(home), _parsed(words)
    merged = {**own, **above}
    for name, between in _JOINED.items():
        values = [each[name] for each in (own, below, above) if each.get(name)]
        if values and (name in own or name in above):
            merged[name] = between.join(values)
    return [*(part for name, value in merged.items() for part in ("--conf", f"{name}={value}")), *plain]


def _parsed(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The settings among the words, of two with one name the last; and the words that are no setting."""
    found: dict[str, str] = {}
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, given = word.partition("=")
        is_known = name in _OPTIONS or name in ("--conf", "-c")
        value = given if equals else next(rest, None) if is_known else None
        if not is_known or value is None:
            others.append(word)
        elif name in _OPTIONS:
            found[_OPTIONS[name]] = value
        else:
            key, _, setting = value.partition("=")
            found[key] = setting
    return found, others
