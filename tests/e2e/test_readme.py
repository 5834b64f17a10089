"""The README, word for word: its coordinator runs, its program sends to it and reads from it.

So do snippets of pages that the README leads to. Only the port is another one, and `python` is that of the tests. The
demo and the test runner are commands of the README too; the first has a test of its own, the second is what runs this.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.killing import ROOT, kill
from tests.support.polling import WAIT_S, wait_for, wait_until_equal
from tests.support.running import Program
from tests.support.tables import count

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True) for kind, text in BLOCKS if kind == "bash" for line in text.strip().splitlines()
]
(PROGRAM,) = (text for kind, text in BLOCKS if kind == "python")
PAGES = ("from-rocketmq.md", "how-to/send.md", "how-to/read-topics.md")
MORE = [
    each for page in PAGES for each in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
]
PORT = "19092"
FIND = ".venv/bin/commitlake find order-1 --conf conf/local.yaml"
TOPICS = ("orders", "news")


class Readme:
    """A coordinator started by the README's command, and the place where its reader works."""

    def __init__(self, place: Path) -> None:
        self.place, self.port = place, "0"  # a free one; READY says which
        self.environment = {
            **os.environ,
            "COMMITLAKE__WAREHOUSE": str(place / "warehouse"),
            "COMMITLAKE__CHECKPOINTS": str(place / "checkpoints"),
        }

    def start(self) -> None:
        command = next(command for command in COMMANDS if "run" in command)
        self.running = Program([part.replace(PORT, self.port) for part in command], cwd=ROOT, env=self.environment)

    def await_ready(self) -> None:
        """Waits for READY, and takes the broker's port from there."""
        wait_for(lambda: "READY" in self.running.said or self.running.process.poll() is not None, 300)
        found = re.search(r"READY .*kafka=127\.0\.0\.1:(\d+)", self.running.said)
        assert found, self.running.said
        self.port = found[1]

    def python(self, *holding: str) -> str:
        """Run the snippets of other pages that hold each a text, one after the other, in the reader's directory."""
        snippet = "\n".join(next(text for text in MORE if each in text) for each in holding)
        done = subprocess.run(
            [sys.executable, "-c", snippet.replace(PORT, self.port)],
            cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def program(self) -> str:
        """Run the README's program, and press Ctrl-C when it has shown its order; return what it printed."""
        running = subprocess.Popen(
            [sys.executable, "-uc", PROGRAM.replace(PORT, self.port)], cwd=self.place, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert running.stdout is not None
        seen = ""
        while "one espresso" not in seen and (line := running.stdout.readline()):
            seen += line
        running.send_signal(signal.SIGINT)
        seen += running.communicate(timeout=60)[0]
        assert running.returncode == 0, seen
        return seen

    def command(self, words: list[str]) -> str:
        """Run a command, and return its output."""
        done = subprocess.run(
            words, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readme]:
    """The coordinator of the README, ready; stopped with Ctrl-C at the end."""
    running = Readme(tmp_path_factory.mktemp("readme"))
    running.start()
    try:
        running.await_ready()
        yield running
        running.running.process.send_signal(signal.SIGINT)
        assert running.running.process.wait(WAIT_S) == 0, running.running.said
    finally:
        kill(running.running.process)


@pytest.mark.short(core_seconds=120)  # nine commands and snippets, a process each
@pytest.mark.timeout(900)
def test_the_readme_from_the_first_message_to_the_ledger(readme: Readme) -> None:
    seen = readme.program()
    assert "order-1 one espresso" in seen
    assert "Traceback" not in seen
    assert "COMMITTED" in readme.command(shlex.split(FIND))
    assert "COMMIT_MESSAGE" in readme.python("class Orders")
    assert "ROLLBACK_MESSAGE" in readme.python("class Orders")  # an order that is there
    readme.python('Producer("shop"')
    wait_until_equal(lambda: [count(readme.place / "warehouse", f"topics/{name}") for name in TOPICS], [2, 3])

    assert "two espressos" in readme.python("commitlake.session")
    listed = readme.command([".venv/bin/commitlake", "tx", "list", "--conf", "conf/local.yaml", "--json"])
    assert {json.loads(line)["state"] for line in listed.splitlines()} == {"COMMITTED", "ROLLED_BACK"}

    wait_until_equal(lambda: count(readme.place / "warehouse", "deliveries"), 1)
    (state,) = DeltaTable(readme.place / "warehouse" / "deliveries").to_pyarrow_table()["state"].to_pylist()
    assert state == "RECALLED"


@pytest.mark.short
def test_every_command_and_snippet_of_the_readme_is_run() -> None:
    commands = [
        ["./spark-submit.sh"],
        ["tests/run.sh"],
        ["./spark-submit.sh", "run", "--conf", "conf/local.yaml", "--set", f"kafka.embedded_port={PORT}"],
    ]
    assert commands == COMMANDS
    assert f"`{FIND}`" in README
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith('tests/run.sh"')


@pytest.mark.short
def test_a_producer_and_a_consumer_take_12_lines_and_the_readme_450_words() -> None:
    lines = [line for line in PROGRAM.splitlines() if line.strip()]
    assert len(lines) <= 12
    assert README.splitlines().index("```python") < 35
    assert len(README.split()) <= 450
