"""The whole demo, with its kill and its audit, on machines of other kinds; and what is refused there in one line."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.support.killing import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

NO_IPV4 = (
    "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add fd00::1/64 dev v0 nodad "
    "&& ip link set v0 up && ip link set v1 up"
)
"""But that of the loopback, which machines have that reach others by IPv6 only."""
READ_ONLY = 'mount -t tmpfs -o ro tmpfs "$TMPDIR"'
FULL = 'mount -t tmpfs -o size=1m tmpfs "$TMPDIR"'
NO_PROXY = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}


def inside(namespace: str, first: str) -> list[str]:
    """The begin of a command that runs in a namespace of its own, after another; skips where that is not allowed."""
    prefix = ["unshare", f"--{namespace}", "sh", "-c", f'{first} && exec "$@"', "sh"]
    if (tried := subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(tried.stderr)
    return prefix


def play(place: Path, prefix: Sequence[str] = (), without: str = "", **variables: str) -> tuple[int, str]:
    """Runs the demo; returns its exit code and what it printed."""
    environment: Mapping[str, str] = {name: value for name, value in os.environ.items() if name != without} | variables
    command = [*prefix, str(ROOT / "spark-submit.sh"), "--dir", str(place)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return ended.returncode, ended.stdout.decode(errors="replace")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, which a test puts something else upon."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("west", {"TZ": "America/Sao_Paulo"}),
        ("a quarter of an hour", {"TZ": "Asia/Kathmandu"}),
        ("a proxy that is not there", NO_PROXY),
        ("заказы", {"LANG": "C", "LC_ALL": "C"}),
    ],
)
def test_the_demo_plays_whatever_the_environment_says(tmp_path: Path, name: str, variables: dict[str, str]) -> None:
    code, printed = play(tmp_path / name, **variables)
    assert code == 0, printed
    assert "all is well" in printed


def test_the_demo_plays_without_a_directory_for_temporary_files_being_named(tmp_path: Path) -> None:
    code, printed = play(tmp_path / "demo", without="TMPDIR")
    assert code == 0, printed


def test_the_demo_plays_where_other_machines_are_reached_by_ipv6_only(tmp_path: Path) -> None:
    code, printed = play(tmp_path / "demo", inside("net", NO_IPV4))
    assert code == 0, printed


@pytest.mark.usefixtures("temporary")
def test_the_demo_plays_where_another_directory_for_temporary_files_stands_in(tmp_path: Path) -> None:
    """As Python does it: where $TMPDIR can't be written, /tmp is taken."""
    code, printed = play(tmp_path / "demo", inside("mount", READ_ONLY))
    assert code == 0, printed


def test_a_full_directory_for_temporary_files_is_refused_in_a_line(tmp_path: Path, temporary: Path) -> None:
    begun = time.monotonic()
    code, printed = play(tmp_path / "demo", inside("mount", FULL))
    assert code == 1, printed
    assert f"TMPDIR: 1 MiB free on the disk of {temporary}; allowed is at least 64 MiB free" in printed
    assert len(printed.splitlines()) == 1
    assert time.monotonic() - begun < 30
