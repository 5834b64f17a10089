"""What a coordinator answers Prometheus; and Prometheus, where it is installed (Debian: apt install prometheus)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.cluster import free_port
from tests.support.killing import ROOT

Samples = dict[str, dict[tuple[str, ...], float]]
"""By metric, the values by their labels' values."""
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(port: int) -> Samples:
    """What `/metrics` says."""
    code, text = get(port, "/metrics")
    assert code == 200, text
    return {
        name: {tuple(sorted(each.labels.values())): each.value for each in family.samples if each.name == name}
        for family in text_string_to_metric_families(text)
        for name in {each.name for each in family.samples}
    }


def promtool(*words: str, place: Path) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("Prometheus is not on this machine")
    done = subprocess.run([program, *words], check=False, cwd=place, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """The real one, that scrapes one coordinator.

    Attributes:
        port: of its own API.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def firing(self) -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/alerts", timeout=30) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}


@contextmanager
def prometheus(place: Path, target: int, faster: int) -> Iterator[Prometheus]:
    """Prometheus with conf/prometheus, whose times and limits are those of a clock that runs faster.

    Args:
        place: a directory for its files.
        target: port of the coordinator's metrics.
        faster: how many times as fast.
    """
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not on this machine")
    conf = ROOT / "conf" / "prometheus"
    rules = (conf / "alerts.yml").read_text()
    rules = re.sub(
        r"(?:(?<=\[)|(?<=: ))(\d+)([smhd])\b", lambda t: f"{int(t[1]) * _UNITS_S[t[2]] // faster or 1}s", rules
    )
    rules = re.sub(r"(?<=> )(\d{2,})\b", lambda limit: str(int(limit[1]) / faster), rules)
    (place / "alerts.yml").write_text(rules)
    given = yaml.safe_load((conf / "prometheus.yml").read_text())
    given["global"] = {"scrape_interval": "2s", "evaluation_interval": "1s"}
    (scraped,) = given["scrape_configs"]
    scraped |= {"scrape_timeout": "2s", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    (place / "prometheus.yml").write_text(yaml.safe_dump(given))
    port = free_port()
    command = [program, f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={place}/data"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--config.file={place}/prometheus.yml"], stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)
