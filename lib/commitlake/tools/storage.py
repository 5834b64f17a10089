"""Checks of `commitlake doctor` below the tables: their logs and files, and the disks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from commitlake.config import Config, disks
from commitlake.config.locations import is_local, local_path
from commitlake.errors import NoTableError, WarehouseError
from commitlake.reading import damage
from commitlake.reading.questions.tables import Tables
from commitlake.reading.table import Snapshot, folders, location
from commitlake.tools.backup import TABLES

_LEAST_FREE = 0.1
_TOPICS = "topics"


def damaged(tables: Tables, warehouse: str) -> Iterator[str]:
    """A text for each table that is missing, can't be read, or has lost a file; none where there is no table at all."""
    if not {*TABLES} & {*folders(warehouse)}:
        return
    for name in TABLES:
        try:
            yield from _wrong(warehouse, name)
        except NoTableError:
            place = location(warehouse, name)
            yield f"there is no table at {place}; start the coordinator of this version once, or {damage.REMEDY}"
        except WarehouseError as error:
            yield str(error)
    try:
        topics = tables.listed_topics()
    except WarehouseError:  # reported above, or no coordinator has run
        return
    for topic in topics:
        try:
            yield from _wrong(warehouse, f"{_TOPICS}/{topic}")
        except NoTableError:
            yield damage.of_topic(location(warehouse, f"{_TOPICS}/{topic}"))
        except WarehouseError as error:
            yield str(error)


def _wrong(warehouse: str, name: str) -> Iterator[str]:
    table = Snapshot(location(warehouse, name))
    if is_local(warehouse):
        files = table.files().select(["path", "size_bytes"]).to_pydict()
        sizes = zip(map(unquote, files["path"]), files["size_bytes"], strict=True)
        place = local_path(table.place)
        wrong = damage.of_log(place) or damage.of_files(place, sizes)
        if wrong:
            yield damage.told(place, wrong)


def room(config: Config) -> tuple[bool, str]:
    """Whether all local disks have room, and a text about how much."""
    found = list(disks.disks(config))
    text = "; ".join(f"{disk}, {disk.free / max(disk.total, 1):.0%}" for disk in found) or "not local"
    if disks.short(config):
        return False, f"{text}; nothing lands until there is more room: {disks.REMEDY}"
    is_well = all(disk.free >= _LEAST_FREE * disk.total for disk in found)
    return is_well, text if is_well else f"{text}; make room, or move it"
