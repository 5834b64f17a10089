"""A registry of Avro schemas that speaks as Confluent's does: which schema each body was written with.

A batch of messages never waits long for it. While it is away, schemas that are known go on; bodies with another one get
no value.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from commitlake.config.secret_references import resolve
from commitlake.errors import ConfigError, root_reason

log = logging.getLogger(__name__)

_KEY = "topics.schemas.registry"
_TIMEOUT_S = 5.0
"""Of one answer, and of all answers that one append waits for but the last."""
_PAUSE_S = 30.0
"""So long a registry that is away, or an id that it does not know, is not asked for again."""
_MOST_ABSENT = 10_000
"""Ids that are remembered as not known: a body may have any."""
_ABSENT = 404


class SchemaRegistry:
    """Asks a registry, and remembers its answers until the process ends: a schema never changes.

    Args:
        address: its URL, with user and password where it needs them; or where that is, such as `env:NAME`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._latest: dict[str, str] = {}
        self._known: dict[int, str] = {}
        self._quiet_until_s: dict[int | None, float] = {}
        """By id, and for the registry as a whole, by the monotonic clock."""
        self._lock = threading.Lock()

    def latest(self, subject: str) -> str:
        """The newest schema of a subject, as it was when it was first asked for.

        Raises:
            ConfigError: the registry is out of reach, or has none.
        """
        if subject not in self._latest:
            try:
                answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
                self._latest[subject] = str(answer["schema"])
            except (OSError, HTTPException, ValueError, KeyError) as error:
                msg = (
                    f"{_KEY}: the schema of {subject!r} can't be had: {root_reason(error)}; start the registry, "
                    "or correct its URL or the subject"
                )
                raise ConfigError(msg) from error
        return self._latest[subject]

    def writers(self, ids: Sequence[int], checked: Callable[[str], str]) -> dict[int, str]:
        """The schemas of ids, of those that are known or can be had soon.

        Args:
            ids: the most wanted first.
            checked: makes of a schema what is remembered; raises an exception for one that can't be used.
        """
        with self._lock:
            begun_s = time.monotonic()
            for number in ids:
                waits_s = max(self._quiet_until_s.get(each, 0.0) for each in (None, number))
                if number not in self._known and waits_s <= time.monotonic() < begun_s + _TIMEOUT_S:
                    self._learn(number, checked)
            return {number: self._known[number] for number in ids if number in self._known}

    def _learn(self, number: int, checked: Callable[[str], str]) -> None:
        away: int | None = number
        try:
            self._known[number] = checked(str(self._ask(f"/schemas/ids/{number}")["schema"]))
            return
        except (OSError, HTTPException) as error:  # an HTTPError is one
            away = number if isinstance(error, HTTPError) and error.code == _ABSENT else None
            told = root_reason(error)
        except Exception as error:  # of Avro in Spark's JVM, or no JSON
            told = root_reason(error)
        if len(self._quiet_until_s) > _MOST_ABSENT:
            self._quiet_until_s.clear()
        self._quiet_until_s[away] = time.monotonic() + _PAUSE_S
        log.warning("bodies with the schema %d have no value for now, UNKNOWN_SCHEMA: %s", number, told)

    def _ask(self, path: str) -> Any:
        url = urlsplit(resolve(_KEY, self._address))
        if url.scheme not in ("http", "https"):
            msg = f"{_KEY}: its scheme is {url.scheme!r}; allowed is a URL of http or https"
            raise ConfigError(msg)
        user, at, host = url.netloc.rpartition("@")
        proof = {"Authorization": f"Basic {b64encode(unquote(user).encode()).decode()}"} if at else {}
        asked = Request(f"{url.scheme}://{host}{url.path.rstrip('/')}{path}", headers=proof)
        with urlopen(asked, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)


@cache
def registry(address: str) -> SchemaRegistry:
    """The one of this process; all topics share what it has answered."""
    return SchemaRegistry(address)
