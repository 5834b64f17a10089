"""Which tests a change needs beyond the short run: `python -m tests.changed` prints their files.

What differs from the last commit on main counts, and what is not committed. Tests in tests/unit and tests/property
are in the short run, so `TESTS` has the others. `tests/unit/test_contributing.py` keeps it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# By folder, below lib/commitlake or the root: files below tests/, without "test_" and ".py". The longest prefix counts.
TESTS = {
    "clients/consumer": """spark/read_topic recovery/consumer_kills e2e/reading e2e/gateway
        e2e/operations e2e/s3""",
    "clients/delta": "e2e/delta_transaction e2e/rules_answer_checks",
    "clients/gateway": "e2e/gateway e2e/rocketmq_example",
    "clients/producer": """e2e/producer e2e/producer_faults e2e/many_producers
        e2e/async_producer e2e/checks
        e2e/gateway e2e/rules_answer_checks e2e/rocketmq_example e2e/databases
        e2e/asyncio_drivers e2e/database_to_database""",
    "clients": "e2e/producer e2e/databases e2e/asyncio_drivers",
    "config": "e2e/launch e2e/security recovery/restarts recovery/faults",
    "coordinator": """spark/coordination_rules spark/starts
        recovery/corners recovery/restarts recovery/liveness recovery/faults recovery/campaign
        e2e/alerts steady/steady_load""",
    "coordinator/coordination": """spark/coordination_rules spark/audit spark/park_time
        spark/visible_at spark/in_memory_coordinator
        recovery/coordination_recovery recovery/corners e2e/checks e2e/operations""",
    "coordinator/dedup": "spark/once_by_name recovery/coordination_recovery",
    "coordinator/forwarding": "e2e/to_kafka",
    "coordinator/landing": """spark/landing_records spark/ordinary_records spark/hostile_records
        spark/in_memory_coordinator spark/visible_at
        recovery/landing_recovery recovery/kafka_identity recovery/liveness
        e2e/kafka_topics""",
    "coordinator/maintenance": "spark/maintenance spark/topic_retention spark/starts recovery/corners",
    "coordinator/metrics": "e2e/alerts",
    "coordinator/recovery": """spark/starts recovery/corners recovery/backup
        recovery/coordination_recovery recovery/landing_recovery
        recovery/two_coordinators recovery/signals recovery/restarts recovery/campaign""",
    "coordinator/resolving": "e2e/rules_answer_checks",
    "kafka": """e2e/embedded_broker e2e/kafka_topics
        e2e/kafka_cluster e2e/security e2e/clocks
        recovery/kafka_identity""",
    "protocol": "spark/coordination_rules spark/landing_records spark/in_memory_coordinator e2e/producer",
    "reading": "spark/catalog spark/questions spark/read_topic e2e/operations e2e/reading e2e/s3",
    "spark": """e2e/launch e2e/cluster e2e/yarn e2e/wheel e2e/notebook
        recovery/signals recovery/like_databricks""",
    "tables": """spark/tables spark/appends spark/typed_topics spark/topic_columns spark/schema_registry spark/owner
        recovery/coordination_recovery recovery/two_coordinators e2e/s3""",
    "testing": "spark/in_memory_coordinator",
    "tools": "spark/iceberg spark/questions spark/erase spark/readiness e2e/operations recovery/backup",
    "tools/audit": "spark/audit e2e/operations",
    "tools/cli": "e2e/operations e2e/launch spark/questions",
    "tools/demo": "e2e/demo",
    "tools/report": "spark/questions e2e/operations",
    "conf": "e2e/alerts e2e/launch",
    "jobs": "e2e/launch e2e/cluster",
    "notebooks": "e2e/notebook e2e/rocketmq_example",
    "docs/how-to": "spark/read_topic e2e/reading e2e/asyncio_drivers e2e/database_to_database",
    "README.md": "e2e/readme",
    "setup.py": "e2e/wheel e2e/launch",
    "constraints.txt": "e2e/wheel",
    "spark-submit.sh": "e2e/launch e2e/demo",
}  # fmt: skip


def files_of(folder: str) -> list[str]:
    """The files of tests of a row of the table."""
    return [f"tests/{part}/test_{name}.py" for part, _, name in (each.partition("/") for each in TESTS[folder].split())]


def needed_by(changed: Iterable[str]) -> list[str]:
    """The files of tests that changed paths need, themselves included."""
    return sorted({file for path in changed for file in _files_for(path) if (ROOT / file).exists()})


def _files_for(path: str) -> Iterator[str]:
    if path.startswith("tests/support/"):
        module = path.removesuffix(".py").replace("/", ".")
        yield from _naming(module)
    elif Path(path).name.startswith("test_"):
        yield path
    else:
        below = path.removeprefix("lib/commitlake/")
        folders = [folder for folder in TESTS if below == folder or below.startswith(f"{folder}/")]
        if folders:
            yield from files_of(max(folders, key=len))


def _naming(module: str) -> Iterator[str]:
    """Files of tests that import a module of tests/support."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        if f"from {module} import" in file.read_text():
            yield str(file.relative_to(ROOT))


def changed() -> list[str]:
    """Paths that differ from the commit of main that this one stands on; on main from what is published."""
    branch = _git("rev-parse", "--abbrev-ref", "HEAD")[0]
    others = [name for name in ("main", "origin/main") if name != branch and _git("rev-parse", "--verify", "-q", name)]
    base = _git("merge-base", "HEAD", others[0])[0] if others else "HEAD"
    return [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*words: str) -> list[str]:
    """Its lines; none where it fails, as it does for a name that is not there."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


if __name__ == "__main__":
    print(*needed_by(changed()), sep="\n")
