"""What differs on Databricks, as far as it can be told without it: a runtime that is only named, and fakes of Spark."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import sqlglot
import yaml
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from sqlglot import exp
from tests.support.polling import wait_until_equal

import commitlake
from commitlake.config import from_mapping
from commitlake.config.locations import SIGN_OF_LIFE, is_local
from commitlake.errors import ConfigError, SetupError, WarehouseError
from commitlake.reading.questions import liveness
from commitlake.spark import checkpoints, files, frames, jvm, preflight, process, session
from commitlake.tables import TABLES, creation, direct_append, topic_table
from commitlake.tables.names import TableName
from commitlake.tools.cli import app, commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "databricks.md").read_text()
BUNDLE = yaml.safe_load((ROOT / "conf" / "databricks" / "databricks.yml").read_text())
JOBS = BUNDLE["resources"]["jobs"]
CONF = from_mapping(yaml.safe_load((ROOT / "conf" / "databricks.yaml").read_text()))
COMMANDS = {
    "fs cp": 2,
    "secrets create-scope": 1,
    "secrets put-secret": 2,
    "bundle deploy": 0,
    "bundle run": 1,
}
"""Commands of Databricks' CLI that the page shows, with the number of their arguments."""
ANYONE: Any = None
"""A session that nobody looks at."""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")


@pytest.mark.usefixtures("runtime")
def test_a_volume_is_no_disk_of_the_driver() -> None:
    place = from_mapping({"checkpoints": "/Volumes/main/lake/checkpoints"}).checkpoints
    assert (place, is_local(place)) == ("dbfs:/Volumes/main/lake/checkpoints", False)
    assert not session._of_places(place, place, "4.0.0").keys() & {"spark.sql.streaming.checkpointFileManagerClass"}


def test_elsewhere_a_volume_is_a_directory_as_any() -> None:
    assert from_mapping({"checkpoints": "/Volumes/usb/checkpoints"}).checkpoints == "/Volumes/usb/checkpoints"


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("name", ["warehouse", "receipts"])
@pytest.mark.parametrize("place", ["/Volumes/main/lake/tables", "dbfs:/Volumes/main/lake/tables"])
def test_tables_in_a_volume_are_refused(name: str, place: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{name}: .*; allowed is schema:<catalog>.<schema> or a URI of cloud storage"
    ):
        from_mapping({name: place})


def test_files_in_a_volume_are_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlake.config.databricks._VOLUMES", f"{tmp_path}/")
    volume = files.FileSystem(ANYONE, f"dbfs:{tmp_path}/lake")
    assert (volume.read("_stop"), volume.names(""), volume.exists("offsets/0")) == (None, [], False)
    volume.write("offsets/0", "v1")
    volume.write("offsets/0", b"v2")
    volume.write("_stop", "epoch 1")
    assert (volume.read("offsets/0"), volume.exists("offsets")) == ("v2", True)
    assert (sorted(volume.names("")), volume.directories("")) == (["_stop", "offsets"], ["offsets"])
    for name in ("offsets", "absent"):
        volume.delete_alone(name)  # not empty
    assert volume.exists("offsets/0")
    for name in ("offsets", "_stop", "absent"):
        volume.delete(name)
    assert volume.names("") == []


def test_a_start_deletes_the_scratch_of_older_ones_in_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlake.config.databricks._VOLUMES", f"{tmp_path}/")
    conf = replace(CONF, checkpoints=f"dbfs:{tmp_path}/checkpoints")
    parent = Path(conf.scratch.removeprefix("dbfs:")) / "landing"
    for name in ("1-a/state", "2-b/state", "3-c"):
        (parent / name).mkdir(parents=True)
    assert checkpoints.fresh(ANYONE, conf, "landing", 3).startswith(f"dbfs:{parent}/3-")
    wait_until_equal(lambda: [each.name for each in parent.iterdir()], ["3-c"], 10)


@pytest.mark.usefixtures("runtime")
def test_a_scratch_table_in_a_volume_is_made_by_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databricks documents path-based writes there, and refuses a volume as the location of a table."""
    delta, spark, place = MagicMock(), MagicMock(), "dbfs:/Volumes/main/lake/checkpoints/inputs/table"
    monkeypatch.setattr(creation, "DeltaTable", delta)
    layout = TableName("epochs").layout
    assert creation.create_at_path(spark, place, layout) is delta.forPath.return_value
    assert not delta.createIfNotExists.called
    writer = spark.createDataFrame.return_value.write.format.return_value.mode.return_value
    assert writer.options.call_args.kwargs == layout.properties()
    assert writer.options.return_value.partitionBy.return_value.save.call_args.args == (place,)


def test_a_sign_of_life_in_a_volume_is_seen_on_databricks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shown in ((), (Path("/Volumes"),)):  # on Linux, and macOS
        with (
            monkeypatch.context() as machine,
            pytest.raises(WarehouseError, match=r"checkpoints: /Volumes/.* is seen on Databricks only.*; look at its"),
        ):
            machine.setattr(Path, "is_dir", lambda place, shown=shown: place in shown)
            liveness.runs(CONF)
    monkeypatch.setattr("commitlake.config.databricks._VOLUMES", f"{tmp_path}/")
    conf = replace(CONF, checkpoints=f"dbfs:{tmp_path}/checkpoints")
    assert not liveness.runs(conf)
    files.FileSystem(ANYONE, conf.signs_at).write(SIGN_OF_LIFE, "epoch 1")
    assert liveness.runs(conf)


@pytest.mark.usefixtures("runtime")
def test_a_session_of_spark_connect_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(session, "submit_settings", lambda *_, **__: pytest.fail("no JVM is started there"))
    there = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    monkeypatch.setattr(session, "_with_own_interrupt_handler", lambda _: there)
    with pytest.raises(SetupError, match="use a cluster with dedicated access mode"):
        session.build(from_mapping({"warehouse": "schema:main.lake"}))


class Refusing:
    """Settings of a session, some of which a platform keeps as they are."""

    def __init__(self, *kept: str) -> None:
        self.kept, self.given = kept, dict[str, str]()

    def set(self, name: str, value: str) -> None:
        if name in self.kept:
            raise AnalysisException(f"[CANNOT_MODIFY_CONFIG] {name}")
        self.given[name] = value


def spark_with(conf: Refusing) -> Any:
    return SimpleNamespace(conf=conf, version="4.0.0", sparkContext=SimpleNamespace(master="local[*]"))


def test_only_databricks_may_keep_a_setting_and_none_of_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning, required = "spark.sql.adaptive.enabled", "spark.sql.session.timeZone"
    with pytest.raises(AnalysisException):
        session.apply_settings(spark_with(Refusing(tuning)))
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    session.apply_settings(spark_with(conf := Refusing(tuning)))
    assert conf.given.keys() >= session.REQUIRED.keys()
    with pytest.raises(AnalysisException):
        session.apply_settings(spark_with(Refusing(required)))


class Renamed:
    """A JVM whose Delta has other names: py4j takes what it does not find for a package."""

    def __getattr__(self, name: str) -> Any:
        if name == "java.lang.Class":
            return SimpleNamespace(forName=MagicMock(side_effect=Py4JError("ClassNotFoundException")))
        return JavaPackage(name, None) if ".delta." in name else MagicMock()


def test_where_delta_has_other_names_its_writer_appends_and_its_cache_stays() -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=Renamed()))
    assert direct_append.found(spark, "dbfs:/Volumes/main/lake") is None
    frames.forget_tables(spark)


def test_helpers_that_a_platform_hides_are_not_needed() -> None:
    hiding = type("Hiding", (), {"__getattr__": MagicMock(side_effect=Py4JError("is not whitelisted"))})()
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=hiding))
    jvm.remember(spark)
    frame = MagicMock()
    frame._jdf.queryExecution.side_effect = Py4JError("Method rdd([]) does not exist")
    frames.release(frame)


@pytest.mark.usefixtures("runtime")
def test_the_platforms_own_path_is_not_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "typer.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    preflight.check_imports()
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    with pytest.raises(SetupError, match="hides the module typer"):
        preflight.check_imports()


def test_outside_the_main_thread_signals_keep_their_handlers() -> None:
    before, ended = signal.getsignal(signal.SIGTERM), []

    def job() -> None:
        with process.exit_on_signals(0):
            ended.append(process.stop_on_signals().is_set())

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
    assert (ended, signal.getsignal(signal.SIGTERM)) == ([False], before)


def test_a_wheel_task_fails_by_any_exit_so_success_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--version"])
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 0
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    app.main()
    monkeypatch.setattr(sys, "argv", ["", "run", "--set=warehouse=/Volumes/main/lake/tables"])
    with pytest.raises(SystemExit, match=r"error: warehouse: .* is not allowed"):  # which the page of the run shows
        app.main()


@pytest.mark.parametrize("is_there", [False, True])
def test_the_spark_of_a_cluster_is_not_stopped(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    spark = MagicMock()
    monkeypatch.setattr(session, "build", lambda *_, **__: spark)
    monkeypatch.setattr(commands, "_started", MagicMock())
    if is_there:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    commands.run(from_mapping({}), available_now=True)
    assert spark.stop.called != is_there


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def shown() -> list[tuple[str, list[str], dict[str, str]]]:
    """The commands of the page: name, arguments, and options with a value."""
    found = []
    for line in "".join(snippets("bash")).splitlines():
        program, *words = shlex.split(line)
        if program == "databricks":
            given = {words[n]: words[n + 1] for n, word in enumerate(words) if word in ("--target", "--var")}
            plain = [word for word in words[2:] if not word.startswith("--") and word not in given.values()]
            found.append((" ".join(words[:2]), plain, given))
    return found


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 600


def test_commands_of_the_page_name_what_the_bundle_has() -> None:
    commands = shown()
    assert {name for name, *_ in commands} == COMMANDS.keys()
    for name, arguments, options in commands:
        assert len(arguments) == COMMANDS[name], (name, arguments)
        if name.startswith("bundle"):
            assert options["--target"] in BUNDLE["targets"]
            assert set(arguments) <= JOBS.keys()
    told = [options["--var"] for *_, options in commands if "--var" in options]
    told += [each for words in re.findall(r"`--var ([^`]+)`", PAGE) for each in words.split(" --var ")]
    assert len(told) == 4
    needed = {name for name, each in BUNDLE["variables"].items() if "default" not in each}
    assert set(re.findall(r"BUNDLE_VAR_(\w+)=", PAGE)) == needed
    assert {each.partition("=")[0] for each in told} <= BUNDLE["variables"].keys()
    named = set(re.findall(r"`(commitlake-[a-z-]+)`", PAGE))
    assert named and named <= {job["name"] for job in JOBS.values()}


def test_secrets_and_volumes_of_the_page_are_those_of_the_configuration() -> None:
    given: dict[str, list[list[str]]] = {}
    for name, arguments, _ in shown():
        given.setdefault(name, []).append(arguments)
    ((scope, key),) = given["secrets put-secret"]
    assert given["secrets create-scope"] == [[scope]]
    assert CONF.kafka.options["sasl.jaas.config"] == f"secret:{scope}/{key}"
    conf, ca = [target.removeprefix("dbfs:") for _, target in given["fs cp"]]
    assert (conf, ca) == (BUNDLE["variables"]["conf"]["default"], CONF.kafka.options["ssl.truststore.location"])
    assert (ROOT / given["fs cp"][0][0]).exists()
    volumes = {
        f"/Volumes/{name.replace('.', '/')}" for name in re.findall(r"CREATE (?:EXTERNAL )?VOLUME ([\w.]+)", PAGE)
    }
    assert volumes == {CONF.checkpoints, str(Path(conf).parent)}


def test_queries_of_the_page_name_tables_of_the_schema() -> None:
    queries = [each for text in snippets("sql") if "VOLUME" not in text for each in text.split(";") if each.strip()]
    schema = CONF.warehouse.removeprefix("schema:")
    assert len(queries) == 3
    for query in queries:
        parsed = sqlglot.parse_one(query, dialect="databricks")
        columns = {column.name for column in parsed.find_all(exp.Column)} - {schema.partition(".")[0], "commitlake"}
        (name,) = re.findall(rf"{schema}\.(\w+)", query)
        table = topic_table("orders") if name == topic_table("orders").in_catalog else name
        layout = table.layout if table != name else TABLES[name]
        assert columns - {name} <= set(layout.columns), query


def test_programs_of_the_page_start_a_coordinator_and_read_tables_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, start, doctor, of = MagicMock(), MagicMock(), MagicMock(), MagicMock(return_value=CONF)
    monkeypatch.setattr("commitlake.config.of", of)
    monkeypatch.setattr(commitlake, "start", start)
    monkeypatch.setattr(commitlake, "doctor", doctor)
    names = {"spark": spark}
    for text in snippets("python"):
        exec(text, names)
    conf = BUNDLE["variables"]["conf"]["default"]
    assert [call.args[-1] for call in (*doctor.call_args_list, *start.call_args_list, *of.call_args_list)] == [conf] * 4
    tables = [call.args[0] for call in spark.read.format().table.call_args_list]
    assert tables == ["`main`.`commitlake`.`topic_orders`", "`main`.`commitlake`.`transactions`"]
