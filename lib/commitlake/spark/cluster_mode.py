"""Cluster mode: the driver runs on the cluster, so all that it would read on this machine travels with it.

The configuration travels with the files of its secrets, the log's settings, and all packages. The launcher submits the
application and ends; nothing of it is left here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from commitlake import config
from commitlake.config import yaml_texts
from commitlake.config.config import MAPS
from commitlake.errors import ConfigError, SetupError
from commitlake.spark import executors, process

MODE = "spark.submit.deployMode"
PYTHON = "spark.yarn.appMasterEnv.PYSPARK_PYTHON"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_CONFIGURATION = "commitlake.yaml"
_PLACES = ("warehouse", "checkpoints")
_STAY_AT_HOME = ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON")
"""Variables that Spark hands on to the cluster, where this machine's Python and clone are not."""
_TRAVEL = ("COMMITLAKE_LOG", "COMMITLAKE_LOG_FORMAT", "COMMITLAKE_STACK_LINES")
_FOLLOW = """\
submitted; the driver runs on the cluster, and READY is in its log:
  yarn application -status ID          its state; the id is above
  yarn logs -applicationId ID          its log, also while it runs
  commitlake stop --conf FILE          a clean stop
"""


def settings(place: Path, arguments: Sequence[str], *, is_python_named: bool) -> tuple[dict[str, str], list[str]]:
    """Settings of Spark with which a command runs on the cluster, and the command's words there.

    Args:
        place: a directory for the files that travel, until Spark has uploaded them.
        arguments: the command's words, options as `--name=value`.
        is_python_named: whether the operator names a Python of the cluster, which has all packages then.

    Raises:
        ConfigError: a secret stands in a variable of the environment, which YARN shows to all.
    """
    conf = [word.removeprefix("--conf=") for word in arguments if word.startswith("--conf=")]
    sets = [word.removeprefix("--set=") for word in arguments if word.startswith("--set=")]
    files = _written(place, conf[-1] if conf else None, sets)
    own = {
        "spark.files": ",".join(map(str, [*files, LOG_SETTINGS])),
        "spark.yarn.submit.waitAppCompletion": "false",
        **{f"spark.yarn.appMasterEnv.{name}": os.environ[name] for name in _TRAVEL if name in os.environ},
    }
    if not is_python_named:
        own |= executors.settings(executors.of_driver())
        own["spark.yarn.appMasterEnv.PYTHONPATH"] = executors.DIRECTORY
    command, *words = [word for word in arguments if not word.startswith(("--conf=", "--set="))]
    return own, [command, f"--conf={_CONFIGURATION}", *words]


def _written(place: Path, conf: str | None, sets: Sequence[str]) -> list[Path]:
    """Writes the configuration as the driver shall read it; returns its file, and copies of those of its secrets."""
    checked, values = config.load(conf, sets), config.given_values(conf, sets)
    values |= {name: getattr(checked, name) for name in _PLACES}  # a relative one is of this directory
    texts = {name: value for name, value in values.items() if name in MAPS and isinstance(value, str)}
    values |= {name: yaml_texts.load(value) for name, value in texts.items()}  # they may name secrets
    secrets: list[Path] = []
    file = place / _CONFIGURATION
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(_travelling("", values, place, secrets)), encoding="utf-8")
    return [file, *secrets]


def _travelling(name: str, value: object, place: Path, secrets: list[Path]) -> object:
    """A value with the files that it names beside it; one that is not on this machine may be on the cluster's."""
    if isinstance(value, Mapping):
        return {key: _travelling(f"{name}.{key}".strip("."), each, place, secrets) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_travelling(name, each, place, secrets) for each in value]
    scheme, _, target = value.partition(":") if isinstance(value, str) else ("", "", "")
    if scheme == "env":
        msg = (
            f"{name}: env:{target} is not allowed with --deploy-mode cluster: YARN shows an application's environment "
            "to all; write the secret to a file that only you can read, and name it as file:/path: it travels along"
        )
        raise ConfigError(msg)
    if scheme != "file" or not Path(target).is_file():
        return value
    copy = place / f"secret-{len(secrets)}"
    copy.touch(mode=0o600)
    shutil.copyfile(target, copy)
    secrets.append(copy)
    return f"file:{copy.name}"


def submit(command: Sequence[str], environment: Mapping[str, str], master: str) -> int:
    """Submits the application, and says how to follow it; returns spark-submit's exit code.

    Raises:
        SetupError: the master is not YARN, or Hadoop's configuration, which says where that is, is not named.
    """
    if master != "yarn":
        msg = f"--deploy-mode cluster is for --master yarn; with {master} leave it out: the driver runs here"
        raise SetupError(msg)
    if not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & set(environment):
        msg = "HADOOP_CONF_DIR is not set; set it to the directory with the cluster's core-site.xml and yarn-site.xml"
        raise SetupError(msg)
    kept = {name: value for name, value in environment.items() if name not in _STAY_AT_HOME}
    logs = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    with process.exit_on_signals(process.STOPPED):  # the copies of secrets are deleted then
        code = subprocess.run(command, env={"SPARK_SUBMIT_OPTS": logs, **kept}, check=False).returncode
    if code == 0:
        print(_FOLLOW, end="", flush=True)
    return code


def is_later_attempt() -> bool:
    """Whether this driver is a further attempt of an application on YARN.

    Another application may have taken over before it. Two that fenced each other's attempts left a warehouse without a
    coordinator for 8 minutes, so an attempt after the first one stands by.
    """
    fields = os.environ.get("CONTAINER_ID", "").split("_")  # container_e17_1410901177871_0001_02_000001
    return len(fields) > 4 and int(fields[-2]) > 1
