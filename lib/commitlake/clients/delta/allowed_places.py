"""Places where a rule `delta-log` may read and write: below the places that it names, never in the coordinator's own.

Any producer that may write to `half` can name tables, and the coordinator may write where that producer may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commitlake.clients.delta.properties import TABLES
from commitlake.config import Config
from commitlake.config.locations import is_local, is_within, likely_parts, parts
from commitlake.errors import ConfigError, RecordError

DELTA_LOG = "delta-log"
"""Value of a rule's `table`: the logs of the tables that a `delta_transaction` writes to answer the checks."""
SINKS = "sinks"
"""The table of `commitlake.sink`, next to the receipts. Every rule may use it, since it holds only marks."""


class AllowedPlaces:
    """The places of one rule.

    Args:
        config: the coordinator's configuration; its warehouse, checkpoints and receipts are never allowed.
        group: producer group of the rule.
        places: the places that the rule names.

    Raises:
        ConfigError: a place can be read in several ways.
    """

    def __init__(self, config: Config, group: str, places: Sequence[str]) -> None:
        own = [config.warehouse, config.checkpoints]
        with suppress(ConfigError):  # raised for a warehouse in a catalog without a place of receipts
            own.append(config.receipts_place)
        self._key = f"checks.{group}.places"
        self._own = [_folded(likely_parts(place)) for place in own]
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
