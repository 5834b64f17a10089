"""docs/how-to/java.md, word for word: two instances of the order service, of which one is killed, and two consumers.

Only the ports and the Python are others. A coordinator and a gateway run as the page starts them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.killing import ROOT, kill
from tests.support.polling import wait_for, wait_until_equal
from tests.support.tables import rows

PAGE = (ROOT / "docs" / "how-to" / "java.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.strip().splitlines()]
(COMPARISON,) = [text for kind, text in BLOCKS if kind == "python"]
EXAMPLE = Path("notebooks", "examples", "java")
KAFKA, GATEWAY = "19092", "8081"
LONG_S = 300
"""Six JVMs start beside each other."""
ORDERS = [f"{instance}-{n}" for instance in "ab" for n in (1, 2, 4, 5)]
"""Those that are paid; the bank declines each third."""


class Terminal:
    """A command that runs, and what it has said."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def awaited(self, pattern: str) -> str:
        """What the group of a pattern matches, once it has said so."""
        found = wait_for(lambda: re.search(pattern, self.said), LONG_S, lambda: self.said)
        return found[1]


class Tutorial:
    """The page's commands, in a place that looks like a clone."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ports = {KAFKA: "0", GATEWAY: "0"}  # free ones; READY says which
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "COMMITLAKE__WAREHOUSE": str(place / "warehouse"),
            "COMMITLAKE__CHECKPOINTS": str(place / "checkpoints"),
        }
        self.terminals: list[Terminal] = []
        shutil.copytree(ROOT / EXAMPLE, place / EXAMPLE, ignore=shutil.ignore_patterns("target", "*.db"))

    def start(self, pattern: str) -> Terminal:
        """Run the command in which a pattern is, and let it go on."""
        command = self._command(pattern)
        cwd = self.place / EXAMPLE if command[0] in ("java", "mvn") else ROOT
        self.terminals.append(Terminal(command, cwd, self.environment))
        return self.terminals[-1]

    def run(self, pattern: str, **placeholders: str) -> str:
        """What the command prints; it must end well."""
        command = [placeholders.get(word, word) for word in self._command(pattern)]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def agrees(self) -> bool:
        """Whether the page's comparison prints True."""
        command = [sys.executable, "-c", COMPARISON]
        done = subprocess.run(command, cwd=self.place, capture_output=True, text=True, check=True)
        return done.stdout == "True\n"

    def book(self, name: str, condition: str = "true") -> list[tuple[str, str]]:
        """Orders of a database, with the messages that brought them; each as often as it is there."""
        with sqlite3.connect(self.place / EXAMPLE / f"{name}.db") as db:
            return sorted(db.execute(f"SELECT order_id, message_id FROM {name} WHERE {condition}"))

    def shown(self) -> list[tuple[str, str]]:
        return sorted((row["keys"], row["message_id"]) for row in rows(self.place / "warehouse", "topics/paid-orders"))

    def ends(self) -> Counter[tuple[str, str]]:
        """How the transactions ended."""
        return Counter((row["state"], row["reason"]) for row in rows(self.place / "warehouse", "transactions"))

    def _command(self, pattern: str) -> list[str]:
        (line,) = [line for line in COMMANDS if re.search(pattern, line)]
        for port, taken in self.ports.items():
            line = line.replace(port, taken)
        return shlex.split(line.replace(".venv/bin/commitlake", f"{sys.executable} -m commitlake.tools.cli"))


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Tutorial]:
    """Maven has fetched what it needs; coordinator, gateway and consumers run."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed")
    running = Tutorial(tmp_path)
    try:
        maven = running.start("^mvn ")
        if maven.process.wait(LONG_S):
            pytest.skip(f"the Java client can't be fetched: {maven.said[-200:]}")
        running.ports[KAFKA] = running.start(r"spark-submit\.sh run").awaited(r"READY.* kafka=127\.0\.0\.1:(\d+)")
        running.ports[GATEWAY] = running.start("commitlake gateway").awaited(r"READY .* (\d+)\n")
        running.start(r"Points\.java")
        running.start(r"Logistics\.java")
        yield running
    finally:
        for terminal in reversed(running.terminals):
            kill(terminal.process)


@pytest.mark.soak  # Maven fetches packages
def test_another_instance_answers_for_a_killed_one_and_all_four_books_agree(tutorial: Tutorial) -> None:
    a = tutorial.start(" a 5$")
    a.awaited("(answers checks)")
    b = tutorial.start(" b 5 dies$")
    died = b.awaited(r"b-5 PAID (\w+), and killed")
    assert b.process.wait(60) == -signal.SIGKILL
    assert a.awaited(r"check of \[b-5\] (\w+): PAID") == died
    again = tutorial.start(" b 5$")
    again.awaited("(answers checks)")
    assert again.said.count(" NOT PLACED ") == 5

    ends = {("COMMITTED", "DIRECT"): 7, ("COMMITTED", "CHECK"): 1, ("ROLLED_BACK", "DIRECT"): 7}
    wait_until_equal(tutorial.ends, Counter(ends), LONG_S)
    paid = tutorial.book("orders", "state = 'PAID'")
    assert [order for order, _ in paid] == ORDERS
    assert ("b-5", died) in paid
    wait_until_equal(tutorial.shown, paid, LONG_S)
    wait_until_equal(lambda: [tutorial.book("points"), tutorial.book("shipments")], [paid, paid], LONG_S)
    assert tutorial.agrees()

    assert "COMMITTED" in tutorial.run("tx list")
    history = tutorial.run("tx show", MESSAGE_ID=died)
    assert "check" in history


def test_every_command_of_the_page_is_run() -> None:
    run = (
        *(r"^mvn ", r"spark-submit\.sh run", "commitlake gateway", r"Points\.java", r"Logistics\.java"),
        *(" a 5$", " b 5 dies$", " b 5$", "tx list", "tx show"),
    )
    others = [line for line in COMMANDS if not any(re.search(pattern, line) for pattern in run)]
    assert others == [".venv/bin/pip install -e '.[gateway]' -c constraints.txt", f"cd {EXAMPLE}"]
    assert len(COMMANDS) == len(run) + len(others)
