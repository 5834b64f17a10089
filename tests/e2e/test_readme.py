"""The README, word for word: its coordinator runs, its snippets send to it and read from it, its commands answer.

Only the port is another one, and `python` is that of the tests. The demo and the test runner are commands of the
README too; the first has a test of its own, the second is what runs this.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True) for kind, text in BLOCKS if kind == "bash" for line in text.strip().splitlines()
]
SNIPPETS = [text for kind, text in BLOCKS if kind == "python"]
PORT = "19092"


class Readme:
    """A coordinator started by the README's command, and the place where its reader works."""

    def __init__(self, place: Path) -> None:
        self.place = place
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.environment = {
            **os.environ,
            "COMMITLAKE__WAREHOUSE": str(place / "warehouse"),
            "COMMITLAKE__CHECKPOINTS": str(place / "checkpoints"),
        }
        self.lines: list[str] = []

    def start(self) -> None:
        command = next(command for command in COMMANDS if "run" in command)
        self.process = subprocess.Popen(
            [part.replace(PORT, self.port) for part in command],
            cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def has_spoken(self) -> bool:
        """Whether it is ready, or has ended."""
        return any("READY" in line for line in self.lines) or self.process.poll() is not None

    def python(self, holding: str) -> str:
        """Run the snippet that holds a text, in the reader's directory."""
        (snippet,) = [text for text in SNIPPETS if holding in text]
        done = subprocess.run(
            [sys.executable, "-c", snippet.replace(PORT, self.port)],
            cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def command(self, name: str) -> str:
        """Run the command that has a word."""
        (command,) = [command for command in COMMANDS if name in command]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory, eventually: Callable[..., None]) -> Iterator[Readme]:
    """The coordinator of the README, ready; stopped with Ctrl-C at the end."""
    running = Readme(tmp_path_factory.mktemp("readme"))
    running.start()
    try:
        eventually(running.has_spoken, seconds=300)
        assert running.process.poll() is None, "".join(running.lines)
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        code = running.process.wait(timeout=120)
    assert code == 0, "".join(running.lines)


@pytest.mark.timeout(900)
def test_the_readme_from_the_first_message_to_the_ledger(readme: Readme, eventually: Callable[..., None]) -> None:
    assert "COMMIT_MESSAGE" in readme.python("class Orders")
    readme.python("begin_transaction")
    topics = readme.place / "warehouse" / "topics"
    eventually(lambda: rows(topics / "orders") == 2 and rows(topics / "points") == 1 and rows(topics / "news") == 3)

    seen = readme.python("deltalake")
    assert "order-1" in seen
    assert "one espresso" in seen
    assert "two espressos" in readme.python("readStream")

    until = time.monotonic() + 60
    while "recalled" not in (counts := summary(readme)) or counts["recalled"] != "1":
        assert time.monotonic() < until, counts
    assert counts["holds"] == "True"


def summary(readme: Readme) -> dict[str, str]:
    """What the ledger command says of the topic `news`."""
    lines = [line.split() for line in readme.command("--summary").splitlines()]
    header = next(line for line in lines if line[:1] == ["topic"])
    return dict(zip(header, next(line for line in lines if line[:1] == ["news"]), strict=True))


def rows(table: Path) -> int:
    from deltalake import DeltaTable

    return DeltaTable(table).to_pyarrow_table().num_rows if DeltaTable.is_deltatable(str(table)) else 0


def test_every_command_and_snippet_of_the_readme_is_run() -> None:
    commands = [
        ["./spark-submit.sh"],
        ["tests/run.sh"],
        ["./spark-submit.sh", "run", "--conf", "conf/local.yaml", "--set", f"kafka.embedded_port={PORT}"],
        ["./spark-submit.sh", "ledger", "--conf", "conf/local.yaml", "--summary"],
    ]
    assert commands == COMMANDS
    assert len(SNIPPETS) == 4
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith('tests/run.sh"')


def test_a_producer_takes_15_lines_and_a_consumer_5() -> None:
    lengths = [len([line for line in text.splitlines() if line.strip()]) for text in SNIPPETS]
    assert lengths[0] <= 15
    assert max(lengths[1:3]) <= 5
