"""Image, Kubernetes, Databricks and the release: that the files fit each other and what they are written for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import commitlake
from commitlake import config
from commitlake.config.keys import masked
from commitlake.config.secret_references import is_secret_reference
from commitlake.spark.runtime import _PACKAGES
from commitlake.spark.session import _JAVA_OPTIONS, STATIC_SETTINGS
from commitlake.tools.cli.app import app

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "conf" / "docker" / "Dockerfile").read_text()
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "conf" / "kubernetes" / "coordinator.yaml").read_text())
)
BY_KIND = {each["kind"]: each for each in OBJECTS}
POD = BY_KIND["Deployment"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
BUNDLE = yaml.safe_load((ROOT / "conf" / "databricks" / "databricks.yml").read_text())
JOBS = BUNDLE["resources"]["jobs"]
ON_DATABRICKS = config.from_mapping(yaml.safe_load((ROOT / "conf" / "databricks.yaml").read_text()))
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def mounts() -> dict[str, list[str]]:
    """The files that the container finds, by their directory."""
    volumes = {each["name"]: each for each in POD["volumes"]}
    found = {}
    for mount in CONTAINER["volumeMounts"]:
        volume = volumes[mount["name"]]
        if "secret" in volume:
            found[mount["mountPath"]] = [item["path"] for item in volume["secret"]["items"]]
        elif "configMap" in volume:
            found[mount["mountPath"]] = list(BY_KIND["ConfigMap"]["data"])
    return found


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: str(each["kind"]))
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_a_kubernetes_object_fits_its_schema(each: dict[str, Any], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate: it has the schemas")
    validate.validate(each, version, strict=True)


def test_the_configuration_in_kubernetes_is_one_and_its_files_are_mounted() -> None:
    text = BY_KIND["ConfigMap"]["data"]["conf.yaml"]
    options = config.from_mapping(yaml.safe_load(text)).kafka.options
    files = [value.removeprefix("file:") for name, value in options.items() if name.endswith((".config", ".location"))]
    assert [name for name, value in options.items() if is_secret_reference(value)] == ["sasl.jaas.config"]
    named = [*files, CONTAINER["args"][-1]]
    assert len(named) == 3
    assert [file for file in named if Path(file).name not in mounts()[str(Path(file).parent)]] == []


def test_objects_of_kubernetes_find_each_other_by_their_labels() -> None:
    labels = BY_KIND["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        BY_KIND["Deployment"]["spec"]["selector"]["matchLabels"],
        BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        BY_KIND["Service"]["spec"]["selector"],
    ]
    assert selectors == [labels] * 3
    assert POD["serviceAccountName"] == BY_KIND["ServiceAccount"]["metadata"]["name"]


def test_one_port_is_served_exposed_probed_and_scraped() -> None:
    ports = set(re.findall(r"(?:METRICS__PORT=|EXPOSE |127\.0\.0\.1:)(\d+)(?=[ /\n])", DOCKERFILE))
    assert (
        ports == {str(CONTAINER["ports"][0]["containerPort"])} == {str(BY_KIND["Service"]["spec"]["ports"][0]["port"])}
    )
    assert {CONTAINER[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")} == {
        "/healthz"
    }


def test_the_pod_runs_as_the_user_and_the_version_of_the_image() -> None:
    assert f"USER {POD['securityContext']['runAsUser']}\n" in DOCKERFILE
    assert CONTAINER["image"].rpartition(":")[2] == commitlake.__version__


def test_the_image_takes_the_jars_of_this_version_and_the_python_it_runs_on() -> None:
    given = re.findall(r"PACKAGES=(\S*:\S*)", DOCKERFILE)
    assert [packages.split(",")[:2] for packages in given] == [list(_PACKAGES["4.0"])]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_the_bundle_is_one_of_databricks(name: str) -> None:
    models = pytest.importorskip("databricks.bundles.jobs", reason="pip install databricks-bundles: it has the models")
    assert models.Job.from_dict(JOBS[name]).as_dict()["name"] == JOBS[name]["name"]


@pytest.mark.parametrize("name", JOBS)
def test_the_parameters_of_a_job_of_the_bundle_are_those_of_the_command(name: str) -> None:
    (task,) = JOBS[name]["tasks"]
    command, *arguments = task["python_wheel_task"]["parameters"]
    group: Any = get_command(app)
    assert group.commands[command].make_context(command, list(arguments)).params["conf"] == "${var.conf}"


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_the_bundle_has_one_task_without_a_retry_policy(name: str) -> None:
    """Databricks refuses one beside `continuous`; the other jobs run again when they are started again."""
    (task,) = JOBS[name]["tasks"]
    assert {"max_retries", "retry_on_timeout", "min_retry_interval_millis"} & set(task) == set()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_the_bundle_runs_once_at_a_time_and_tells_of_a_failure(name: str) -> None:
    assert JOBS[name]["max_concurrent_runs"] == 1, "the mode development allows several where a job does not say so"
    assert JOBS[name]["email_notifications"]["on_failure"] == ["${var.alert_email}"]


@pytest.mark.parametrize("name", JOBS)
def test_each_cluster_of_the_bundle_compiles_the_code_that_classifies_records(name: str) -> None:
    (cluster,) = JOBS[name]["job_clusters"]
    own = cluster["new_cluster"]["spark_conf"]
    given = own["spark.driver.extraJavaOptions"].split()
    assert {"-Xss8m", "-XX:-DontCompileHugeMethods"} == set(given) < set(_JAVA_OPTIONS.split())
    generated = "spark.sql.codegen.cache.maxEntries"
    assert own[generated] == STATIC_SETTINGS[generated]


@pytest.mark.parametrize("name", JOBS)
def test_each_cluster_of_the_bundle_is_one_machine_that_a_coordinator_can_use(name: str) -> None:
    (cluster,) = JOBS[name]["job_clusters"]
    given = cluster["new_cluster"]
    assert (given["data_security_mode"], given["num_workers"]) == ("SINGLE_USER", 0)
    assert given["spark_conf"]["spark.master"].startswith("local[")
    assert [each["job_cluster_key"] for each in JOBS[name]["tasks"]] == [cluster["job_cluster_key"]]


def test_the_bundle_catches_up_and_maintains_only_where_the_coordinator_does_not() -> None:
    pauses = {
        name: BUNDLE["variables"][name]["default"]
        for name, job in JOBS.items()
        if {"continuous", "schedule"} & set(job)
    }
    maintains_itself = ON_DATABRICKS.maintenance.interval_ms > 0
    maintenance = "PAUSED" if maintains_itself else "UNPAUSED"
    assert pauses == {"coordinator": "UNPAUSED", "catch_up": "PAUSED", "maintenance": maintenance}
    assert JOBS["coordinator"]["continuous"]["pause_status"] == "${var.coordinator}"
    for name in ("catch_up", "maintenance"):
        assert JOBS[name]["schedule"]["pause_status"] == f"${{var.{name}}}"


def test_variables_of_the_bundle_are_declared_and_used() -> None:
    text = (ROOT / "conf" / "databricks" / "databricks.yml").read_text()
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) == set(BUNDLE["variables"])
    assert all(each["description"] for each in BUNDLE["variables"].values())
    needed = {name for name, each in BUNDLE["variables"].items() if "default" not in each}
    assert needed == {"owner", "alert_email"}, (
        "who deploys must say whom a failure is told, and that it is no second copy"
    )
    assert "${var.owner}" in BUNDLE["targets"]["prod"]["workspace"]["root_path"]


def test_the_configuration_for_databricks_has_its_secrets_in_a_scope() -> None:
    options = ON_DATABRICKS.kafka.options
    secret = {name: value for name, value in options.items() if masked(name, "open") != "open"}
    assert secret == {"sasl.jaas.config": "secret:commitlake/kafka-jaas"}
    assert [value for value in options.values() if is_secret_reference(value)] == list(secret.values())


def test_the_unit_of_systemd_is_one_and_starts_a_command(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "systemd" / "commitlake.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    program, command, *arguments = line.split()
    group: Any = get_command(app)
    assert group.commands[command].make_context(command, arguments).params["standby"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not on this machine")
    unit = tmp_path / "commitlake.service"
    unit.write_text(text.replace(program, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("tag", "code"), [(f"v{commitlake.__version__}", 0), (commitlake.__version__, 1), ("v9.9", 1)])
def test_a_release_is_refused_when_its_tag_is_not_the_version(tag: str, code: int) -> None:
    step = next(each for each in RELEASE["jobs"]["wheel"]["steps"] if each.get("name") == "the tag is the version")
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    command = ["bash", "-e", "-c", step["run"]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert not code or (tag in done.stderr and commitlake.__version__ in done.stderr)
