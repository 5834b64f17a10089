"""Damage of a local Delta table: files of its log, or data files, that are missing or cut.

Libraries report damage in hundreds of lines. A newest commit that is empty, as after a power cut, they do not report.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from commitlake.errors import WarehouseError
from commitlake.reading.markers import commit_file

REMEDY = "bring it back from a copy: docs/runbook.md#damaged-tables"
_UNDAMAGED = {
    "Too many open files": "raise `ulimit -n`",
    "Permission denied": "run this as a user that may read it, such as the coordinator's",
}
"""Remedies for errors that are no damage, by a part of their text."""
_NEWEST = 20
"""Commits of a table that a start reads to see whether they are cut; with thousands of tables more would take long."""
_COMMIT, _CHECKSUM = re.compile(r"\d{20}\.json"), re.compile(r"\d{20}\.crc")
_STACK, _COLOURS = re.compile(r"\s*\d+: "), re.compile(r"\x1b\[\d*m|↳")
_DATA = re.compile(r"/[^'\"]*\.parquet")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..*(parquet|json)")


def told(place: Path | str, what: str) -> str:
    """The text of the error for a damaged table."""
    return f"the table at {place} is damaged: {what}; {REMEDY}"


def of_topic(place: Path | str) -> str:
    """The text of the error for a listed topic whose table does not exist."""
    return f"there is no table at {place}, which `destinations` lists; {REMEDY}"


def of_reading(reason: str) -> str:
    """The text of the error for a data file that can't be read."""
    if named := _DATA.search(reason):
        try:
            Path(named[0]).stat()
        except PermissionError as error:  # DuckDB reports such a file as missing
            reason = str(error)
        except OSError:
            pass
    return f"cannot read a file of a table: {reason}; {remedy(reason)}"


def refuse(warehouse: Path, names: Iterable[str]) -> None:
    """Checks the logs of tables of a local warehouse: of those in `names`, and of all topics.

    Raises:
        WarehouseError: one of them is damaged.
    """
    topics = warehouse / "topics"
    for place in (*(warehouse / name for name in names), *(topics.iterdir() if topics.is_dir() else ())):
        if wrong := of_log(place):
            raise WarehouseError(told(place, wrong))


def of_log(place: Path) -> str:
    """The damage of a table's log; empty where none is found, or where there is no table at all.

    A process may write to it just now, so a log that looks damaged is checked twice.
    """
    try:
        return (_of_log(place) and _of_log(place)) or ""
    except OSError:  # reported when the table is opened
        return ""


def is_empty(place: Path, version: int) -> bool:
    """Whether the commit of a version is an empty file, which libraries take for a commit without actions."""
    try:
        return _file(place / "_delta_log", version).stat().st_size == 0
    except OSError:  # a checkpoint has it
        return False


def reason(error: Exception) -> str:
    """The error text of a library written in Rust, on one line, without its colours and the stack that may follow."""
    lines = takewhile(lambda line: not _STACK.match(line), str(error).splitlines())
    return " ".join(_COLOURS.sub("", line).strip() for line in lines).strip()


def remedy(reason: str, otherwise: str = REMEDY) -> str:
    """The remedy for a table or file that can't be read."""
    return next((told for sign, told in _UNDAMAGED.items() if sign in reason), otherwise)


def _of_log(place: Path) -> str:
    log = place / "_delta_log"
    names = sorted(os.listdir(log)) if log.is_dir() else []
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    last = _version(checkpoints[-1]) if checkpoints else -1
    commits = {_version(name) for name in names if _COMMIT.fullmatch(name)}
    if not commits and not checkpoints:
        return f"{log} has no commit" if next(place.rglob("*.parquet"), None) else ""
    checksums = {_version(name) for name in names if _CHECKSUM.fullmatch(name)}  # each is written after its commit
    later = range(last + 1, max({last, *commits, *checksums}) + 1)
    missing = next((version for version in later if version not in commits), None)
    if missing is not None:
        return f"{_file(log, missing)} is missing"
    newest = [log / name for name in checkpoints if _version(name) == last and name.endswith("parquet")]
    cut = [file for file in newest if not file.read_bytes().endswith(b"PAR1")]
    cut += [file for version in later if not _is_commit(file := _file(log, version), version in later[-_NEWEST:])]
    return f"{cut[0]} is cut" if cut else ""


def _version(name: str) -> int:
    return int(name[:20])


def _file(log: Path, version: int) -> Path:
    return log / commit_file(version)


def _is_commit(file: Path, is_read: bool) -> bool:
    """Whether a commit is not empty, and, where it `is_read`, its last line is whole JSON."""
    if not is_read:
        return file.stat().st_size > 0
    try:
        json.loads(file.read_bytes().rstrip().rpartition(b"\n")[2])
    except ValueError:
        return False
    return True


def of_files(place: Path, sizes: Iterable[tuple[str, int]]) -> str:
    """The damage of the first data file that is missing or has another size; empty where there is none."""
    for path, size in sizes:
        try:
            found = (place / path).stat().st_size
        except FileNotFoundError:
            return f"{place / path} is missing"
        if found != size:
            return f"{place / path} has {found} bytes instead of {size}"
    return ""
