"""Where a rule `delta-log` may look and write: below the places that it names, and never in the coordinator's own.

Whoever may write to `half` names the tables, and the coordinator may write what that producer may not.
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
"""In the place of a rule's table: the logs of the tables that a `delta_transaction` writes to answer."""
SINKS = "sinks"
"""The table of `commitlake.sink`, beside the receipts. It holds marks only, so every rule may use it."""


class AllowedPlaces:
    """The places of one rule.

    Args:
        config: of the coordinator; its warehouse, checkpoints and receipts are its own.
        group: producer group of the rule.
        places: those that the rule names.

    Raises:
        ConfigError: a place can be read in several ways.
    """

    def __init__(self, config: Config, group: str, places: Sequence[str]) -> None:
        own = [config.warehouse, config.checkpoints]
        with suppress(ConfigError):  # a warehouse in a catalog, and no receipts
            own.append(config.receipts_place)
        self._key = f"checks.{group}.places"
        self._own = [_folded(likely_parts(place)) for place in own]
        self._sinks = [likely_parts(f"{place}/{SINKS}") for place in own[2:]]
        self._allowed = [self._parts(place) for place in places]

    def check(self, place: str) -> str:
        """Return the place that may be used: of a local one without symbolic links, so nobody changes them meanwhile.

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
    """Some file systems do not tell `A` from `a`, nor do hosts."""
    return tuple(each.casefold() for each in found)
