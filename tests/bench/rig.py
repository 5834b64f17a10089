"""Starts what a benchmark needs, each in a process of its own, and says what the processes cost.

    given = rig.parser(__doc__).parse_args()
    with rig.Rig(given) as running:
        coordinator = running.coordinator()
        coordinator.ready()
        load = running.load("--rate", 1_000)
        ...
    rig.report("name", given, {"coordinator": {"p50_s": 3.2}})

All that is started ends with the benchmark, however that ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from commitlake import config
from commitlake.kafka import parent_watch
from commitlake.kafka.embedded import EmbeddedBroker
from commitlake.kafka.topics import ensure_topics

ROOT = Path(__file__).parents[2]
PREFIX = "commitlake."
_START_S = 900
_FILL_S = 7_200
_STOP_S = 90
_POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


def command(job: str, *arguments: object) -> list[str]:
    """The command line of a job of CommitLake, as users start it."""
    return [sys.executable, "-m", "commitlake.tools.cli", job, *map(str, arguments)]


def module(name: str, *arguments: object) -> list[str]:
    """The command line of a module of this folder."""
    return [sys.executable, "-m", f"tests.bench.{name}", *map(str, arguments)]


class Cost(NamedTuple):
    """Wall time and CPU in seconds, and memory in MiB, of a process and its descendants until it ended."""

    seconds: float
    cpu_s: float
    peak_mib: float


class Child:
    """A process in a session of its own, by which its descendants are known.

    Attributes:
        session: the id of that session.
        begun: when it was started, s since epoch.
        lines: what it has printed, each with its time.
    """

    def __init__(self, arguments: Iterable[str], log: Path) -> None:
        path = filter(None, [str(ROOT / "lib"), os.environ.get("PYTHONPATH")])
        self.begun = time.time()
        self._process = subprocess.Popen(
            [sys.executable, parent_watch.__file__, str(_STOP_S), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,  # open for as long as the benchmark lives: what `parent_watch` looks at
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.session = self._process.pid
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: Path) -> None:
        assert self._process.stdout is not None
        with log.open("a") as copy:
            for line in self._process.stdout:
                self.lines.append((time.time(), line))
                copy.write(line)
                copy.flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return "".join(line for _, line in list(self.lines))

    @property
    def status(self) -> dict[str, Any]:
        """The last line of JSON that it has printed; empty before the first."""
        found = [line for _, line in list(self.lines) if line.startswith("{")]
        return dict(json.loads(found[-1])) if found else {}

    def ready(self) -> float:
        """Waits for the line with READY; returns its time, s since epoch."""
        self.until(lambda: "READY" in self.output, _START_S)
        return next(at for at, line in self.lines if "READY" in line)

    def until(self, done: Callable[[], object], seconds: float, seen: Callable[[], object] = str) -> None:
        """Polls until `done` is true; fails, with `seen`, when that takes too long or the process ends first."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"not done in {seconds:.0f} s: {seen()}\n{self.output[-4_000:]}"
            assert self.is_running, f"ended too early: {seen()}\n{self.output[-4_000:]}"
            time.sleep(_POLL_S)

    def wait(self, seconds: float, code: int = 0) -> Cost:
        """Waits until it ends; fails when that takes longer, or ends with another exit code."""
        until, cpu, peak = time.monotonic() + seconds, 0.0, 0.0
        while self.is_running:
            assert time.monotonic() < until, f"not done in {seconds} s: {self.output[-4_000:]}"
            cpu, peak = max(cpu, self.cpu_seconds()), max(peak, self.peak_mib())
            time.sleep(_POLL_S)
        ended = time.time()
        self._reader.join(5)
        assert self._process.returncode == code, self.output[-4_000:]
        return Cost(ended - self.begun, cpu, peak)

    def stop(self) -> dict[str, Any]:
        """Asks it to end and waits for that; returns its status."""
        self._process.send_signal(signal.SIGTERM)
        self.wait(_STOP_S)
        return self.status

    def kill(self) -> None:
        """Kills it and its descendants, where it still runs."""
        if not self.is_running:
            return
        for pid, _ in _processes(self.session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5)

    def cpu_seconds(self) -> float:
        """CPU that its processes have taken so far, with that of children that have ended."""
        return _cpu_seconds(self.session)

    def rss_mib(self) -> float:
        """Memory that its processes have now, each by itself."""
        return _memory_mib(self.session, "VmRSS")

    def peak_mib(self) -> float:
        """Memory that its processes had at most, each by itself."""
        return _memory_mib(self.session, "VmHWM")


_Child = TypeVar("_Child", bound=Child)


class Coordinator(Child):
    """A coordinator, with warehouse and checkpoints below `place`."""

    def __init__(self, place: Path, arguments: Iterable[object], settings: Mapping[str, object]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.warehouse, self.checkpoints = place / "warehouse", place / "checkpoints"
        given = {"warehouse": self.warehouse, "checkpoints": self.checkpoints, **settings}
        pairs = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        super().__init__(command("run", *arguments, *pairs), place / "coordinator.log")


class Rig:
    """A broker with CommitLake's topics, and the processes beside it.

    Attributes:
        place: the benchmark's directory.
        servers: the broker's address.
        broker: the broker itself.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._stack = given, ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.place = stack.enter_context(place(self._given))
            self.broker = stack.enter_context(EmbeddedBroker(self.place / "kafka"))
            self.servers = self.broker.bootstrap_servers
            self.create_topics(PREFIX)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all that runs, the broker last."""
        self._stack.close()

    def create_topics(self, prefix: str) -> None:
        """Creates the Kafka topics of another coordinator."""
        ensure_topics(config.from_mapping({"kafka.bootstrap_servers": self.servers, "kafka.topic_prefix": prefix}))

    def fill(self, warehouse: Path, prefix: str, *history: object) -> None:
        """Fills an empty warehouse with a long history, of which Kafka's empty logs of a prefix have lost the records.

        Args:
            warehouse: the warehouse.
            prefix: of the Kafka topics.
            history: options of `synthetic`.
        """
        offset = fill(warehouse, self.place, *history)
        self.broker.stop()
        for source in ("half", "op", "messages"):
            for path in self.broker.data_dir.glob(f"logs/{prefix}{source}-*/{0:020}.*"):
                path.rename(path.with_stem(f"{offset:020}"))  # a log begins where its first file does
        self.broker.start()

    def coordinator(self, *arguments: object, place: Path | None = None, **settings: object) -> Coordinator:
        """Starts a coordinator.

        Args:
            arguments: of the command.
            place: where its warehouse and checkpoints are; None for the benchmark's directory.
            settings: of the configuration, with `__` for a dot.
        """
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        servers = {"kafka.bootstrap_servers": self.servers}
        return self._kept(Coordinator(place or self.place, arguments, servers | dotted))

    def load(self, *arguments: object, name: str = "load") -> Child:
        """Starts a load, which writes down what it appends in `<name>.csv`."""
        return self._helper("load", name, "--log", self.place / f"{name}.csv", *arguments)

    def answers(self, *arguments: object) -> Child:
        """Starts a producer group that answers its checks."""
        return self._helper("answers", "answers", *arguments)

    def copy(self, *arguments: object) -> Child:
        """Starts the plain copy of `half` and `op`, to tables below `copy`."""
        return self._helper("plain_copy", "copy", "--place", self.place / "copy", *arguments)

    def empty_gateway(self) -> Child:
        """Starts a server that answers RocketMQ's producers without any work."""
        return self._kept(Child(module("gateway", "empty"), self.place / "empty_gateway.log"))

    def broker_cpu_seconds(self) -> float:
        """CPU that the broker has taken so far."""
        assert self.broker._process is not None
        return _cpu_seconds(self.broker._process.pid)

    def _helper(self, name: str, log: str, *arguments: object) -> Child:
        return self._kept(Child(module(name, "--servers", self.servers, *arguments), self.place / f"{log}.log"))

    def _kept(self, child: _Child) -> _Child:
        self._stack.callback(child.kill)
        return child


class Cores:
    """Cores that processes use from now until `figures`."""

    def __init__(self, **cpu_seconds: Callable[[], float]) -> None:
        self._read = cpu_seconds
        self._at, self._before = time.monotonic(), self._now()

    def figures(self) -> dict[str, float]:
        wall, now = time.monotonic() - self._at, self._now()
        return {name: (now[name] - before) / wall for name, before in self._before.items()}

    def _now(self) -> dict[str, float]:
        return {name: read() for name, read in self._read.items()}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A command line with what all benchmarks understand."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--keep", type=Path, help="a new directory for tables, Kafka and logs, which then stay")
    return made


@contextmanager
def place(given: argparse.Namespace) -> Iterator[Path]:
    """The benchmark's directory: a temporary one, or that of `--keep`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if given.keep is None:
        with tempfile.TemporaryDirectory(prefix="commitlake-bench-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
    else:
        given.keep.mkdir(parents=True)
        yield given.keep.absolute()


def fill(warehouse: Path, logs: Path, *history: object) -> int:
    """Fills an empty warehouse with a long history, in a process of its own; returns the next offset of each queue.

    Args:
        warehouse: the warehouse.
        logs: the directory of its log.
        history: options of `synthetic`.
    """
    child = Child(module("synthetic", "--warehouse", warehouse, *history), logs / "synthetic.log")
    child.wait(_FILL_S)
    return int(child.status["offsets"])


def report(name: str, given: argparse.Namespace, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a table with a line for each of `figures`, and all of it once more as one line of JSON."""
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    lines = [["", *columns], *[[key, *[_shown(row.get(column)) for column in columns]] for key, row in figures.items()]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))
    parameters = {key: value for key, value in vars(given).items() if key != "keep"}
    made = {"bench": name, "parameters": parameters, "figures": figures}
    print(json.dumps(made, default=_plain), flush=True)


def _plain(value: Any) -> object:
    """What JSON has no form for: numbers of numpy, and paths."""
    return value.item() if hasattr(value, "item") else str(value)


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:,.2f}".removesuffix(".00")


def _processes(session: int) -> Iterator[tuple[int, list[str]]]:
    """The processes of a session: id, and the fields of /proc/PID/stat that follow the name."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield int(path.parent.name), fields


def _cpu_seconds(session: int) -> float:
    return sum(int(ticks) for _, fields in _processes(session) for ticks in fields[11:15]) / _TICKS


def _memory_mib(session: int, name: str) -> float:
    total = 0
    for pid, _ in _processes(session):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    return total / 1_024
