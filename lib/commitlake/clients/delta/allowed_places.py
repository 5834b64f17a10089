"""What a half message says of its Delta tables, and where a rule `delta-log` may read and write.

That is below the places that the rule names, and never in the coordinator's own.

Any producer that may write to `half` can name tables, and the coordinator may write where that producer may not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commitlake.config import Config
from commitlake.config.locations import is_local, is_within, likely_parts, parts
from commitlake.errors import ConfigError, RecordError
from commitlake.protocol.clock import now_ms

_LATEST_MS = 1 << 63

TABLES = "delta.tables"
"""Property with a JSON list of the tables' places."""
DEADLINE = "delta.deadline"
"""Property with the time, in ms since epoch, UTC, after which no rows are accepted."""
DELTA_LOG = "delta-log"
"""Value of a rule's `table`: the logs of the tables that a `delta_transaction` writes to answer the checks."""
SINKS = "sinks"
"""The table of `commitlake.sink`, next to the receipts. Every rule may use it, since it holds only marks."""


def properties(places: Sequence[str], deadline_ms: int) -> dict[str, str]:
    """The properties of a half message about its tables; `deadline_ms` is the time from now until the deadline, ms."""
    return {TABLES: json.dumps(places), DEADLINE: str(now_ms() + deadline_ms)}


def places_of(text: str) -> list[str]:
    """The tables that a half message names.

    Raises:
        RecordError: the text is no list of places; any producer that may write to `half` can send anything.
    """
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, list) or not places or not all(isinstance(each, str) and each for each in places):
        msg = f"{TABLES}: {text[:80]!r} is not allowed; allowed is a JSON list of the tables' places"
        raise RecordError(msg)
    return places


def deadline_of(text: str) -> int:
    """The deadline, ms since epoch, UTC.

    Raises:
        RecordError: the text is no time. Read as a past deadline it would refuse rows that may still come.
    """
    if not text.isdecimal() or len(text) > len(str(_LATEST_MS)) or int(text) >= _LATEST_MS:
        msg = f"{DEADLINE}: {text[:80]!r} is not allowed; allowed are ms since epoch, UTC"
        raise RecordError(msg)
    return int(text)


class AllowedPlaces:
    """The places of one rule; the coordinator's warehouse, checkpoints and receipts are never allowed.

    Raises:
        ConfigError: a place can be read in several ways.
    """

    def __init__(self, config: Config, group: str, places: Sequence[str]) -> None:
        own = [config.warehouse, config.checkpoints]
        with suppress(ConfigError):  # raised for a warehouse in a catalog without a place of receipts
            own.append(config.receipts_place)
        self._key = f"checks.{group}.places"
        self._own = [_folded(likely_parts(place)) for place in (*own, config.tables_at)]
        self._sinks = [likely_parts(f"{place}/{SINKS}") for place in own[2:]]
        self._allowed = [self._parts(place) for place in places]

    def check(self, place: str) -> str:
        """Return the place to use; a local one without symbolic links, so that nobody can redirect it afterwards.

        Raises:
            RecordError: the rule does not allow it.
        """
        try:
            found = parts(place)
            leads_away = is_local(place) and parts(f"{place}/_delta_log") != (*found, "_delta_log")
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: a circle of symbolic links
            msg = f"{TABLES}: {place[:80]!r} is not allowed: {error}"
            raise RecordError(msg) from error
        if leads_away or (found not in self._sinks and not self._is_allowed(found)):
            msg = f"{TABLES}: {place[:80]!r} is not allowed; allowed is what {self._key} names, outside the warehouse"
            raise RecordError(msg)
        return str(Path(*found[1:])) if is_local(place) else place

    def _parts(self, place: str) -> tuple[str, ...]:
        try:
            return parts(place)
        except (ValueError, OSError, RuntimeError) as error:
            msg = f"{self._key}: {error}; write it without escapes, '..' and the like"
            raise ConfigError(msg) from error

    def _is_allowed(self, found: tuple[str, ...]) -> bool:
        if any(is_within(_folded(found), own) for own in self._own):
            return False
        return any(is_within(found, allowed) for allowed in self._allowed)


def _folded(found: tuple[str, ...]) -> tuple[str, ...]:
    """The parts in lower case: some file systems, and host names, do not distinguish `A` from `a`."""
    return tuple(each.casefold() for each in found)
