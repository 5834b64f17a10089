"""What `topics.retention` adds to a run of maintenance, while nothing is old and when all rows are.

    .venv/bin/python -m tests.bench.retention --topics 100 --files 16

Each run is the command that users start, on tables that need no compaction. The first run brings them to that state and
does not count. The first one with an age also lets rows of each table be deleted, once.
"""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from tests.bench import rig

_LIMIT_S = 3_600
_MOST_FILES = 16  # of a table that maintenance does not compact
_RUNS = {"no retention": "none", "the first with one": "3650d", "nothing old": "3650d", "all old": "1h"}


def main() -> None:
    """Writes the tables, measures and prints; fails when the last run leaves a file."""
    parser = rig.parser(__doc__)
    parser.add_argument("--topics", type=int, default=100, help="topics with a table")
    parser.add_argument("--files", type=int, default=16, choices=range(4, _MOST_FILES + 1, 4), help="of each topic")
    parser.add_argument("--file-rows", type=int, default=10_000, help="rows of a file, of which one in nine goes")
    given = parser.parse_args()
    with rig.place(given) as place:
        tables = ("--topics", given.topics, "--file-rows", given.file_rows, "--hours-ago", 2)
        rig.fill(place / "warehouse", place, "--decided", given.files * given.file_rows, *tables)
        maintain(place, "none")
        figures = {name: maintain(place, age) for name, age in _RUNS.items()}
        left = {path.name: len(DeltaTable(path).file_uris()) for path in (place / "warehouse" / "topics").iterdir()}
    assert len(left) == given.topics and not any(left.values()), f"files that are still there: {left}"
    without = figures["no retention"]
    for name in [*_RUNS][1:]:
        figures[name] |= {f"more_{each}": figures[name][each] - without[each] for each in ("seconds", "cpu_s")}
    rig.report("retention", given, figures)


def maintain(place: Path, age: str) -> dict[str, float]:
    """Runs the command with an age for all topics."""
    settings = (f"warehouse={place}/warehouse", f"topics.retention={{default: {age}}}")
    command = rig.command("maintain", *[word for pair in settings for word in ("--set", pair)])
    running = rig.Child(command, place / "maintain.log")
    cost = running.wait(_LIMIT_S)
    return {"seconds": cost.seconds, "cpu_s": cost.cpu_s, "peak_mib": cost.peak_mib}


if __name__ == "__main__":
    main()
