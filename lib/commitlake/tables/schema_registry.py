"""A registry of Avro schemas that speaks as Confluent's does: which schema each body was written with.

A batch of messages never waits long for it. While it is away, schemas that are known go on; bodies with another one get
no value.
"""

from __future__ import annotations

import logging
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from functools import cache
from http import HTTPStatus
from urllib.parse import quote, unquote, urlsplit

from commitlake.config.secret_references import resolve
from commitlake.errors import AnswerError, ConfigError, root_reason
from commitlake.reading.web import asked

log = logging.getLogger(__name__)

_KEY = "topics.schemas.registry"
_TIMEOUT_S = 5.0
"""Of one answer, and of all answers that one append waits for but the last."""
_PAUSE_S = 30.0
"""So long a registry that is away, or an id that it does not know, is not asked for again."""
_MOST_ABSENT = 10_000
"""Ids that are remembered as not known: a body may have any."""
_OF_AN_ID = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Refusals of one id: a body may have one that no registry can have, and others must not wait for it."""


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

    @property
    def known(self) -> Collection[int]:
        """The ids whose schemas it has told."""
        return [*self._known]

    def latest(self, subject: str) -> str:
        """The newest schema of a subject, as it was when it was first asked for.

        Raises:
            ConfigError: the registry is out of reach, or has none.
        """
        if subject not in self._latest:
            try:
                self._latest[subject] = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
            except AnswerError as error:
                msg = (
                    f"{_KEY}: the schema of {subject!r} can't be had: the registry {error}; start it, or correct its "
                    "URL or the subject"
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
            self._known[number] = checked(self._ask(f"/schemas/ids/{number}"))
            return
        except AnswerError as error:
            away, told = number if error.status in _OF_AN_ID else None, f"the registry {error}"
        except Exception as error:  # of Avro in Spark's JVM
            told = root_reason(error)
        if len(self._quiet_until_s) > _MOST_ABSENT:
            self._quiet_until_s.clear()
        self._quiet_until_s[away] = time.monotonic() + _PAUSE_S
        log.warning("bodies with the schema %d have no value for now, UNKNOWN_SCHEMA: %s", number, told)

    def _ask(self, path: str) -> str:
        """The schema in the answer."""
        url, authorization = _parts(resolve(_KEY, self._address))
        found = asked(f"{url}{path}", _TIMEOUT_S, authorization).get("schema")
        if not isinstance(found, str):
            msg = f"gives no schema at {path}"
            raise AnswerError(msg)
        return found


def _parts(address: str) -> tuple[str, str]:
    """The URL without its user and password, and the header that has them.

    Raises:
        ConfigError: it is no such URL; the error does not show it.
    """
    try:
        url = urlsplit(address)
        is_url = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not url.query + url.fragment
    except ValueError:  # a port that is none: what stands before a `/` of a password
        is_url = False
    if not is_url:
        msg = (
            f"{_KEY}: what it names is no URL; allowed is http or https://HOST:PORT/PATH, with USER:PASSWORD@ before "
            "the host where it needs them; write / in a password as %2F, # as %23 and ? as %3F"
        )
        raise ConfigError(msg)
    user, at, host = url.netloc.rpartition("@")
    proof = f"Basic {b64encode(unquote(user).encode()).decode()}" if at else ""
    return f"{url.scheme}://{host}{url.path.rstrip('/')}", proof


@cache
def registry(address: str) -> SchemaRegistry:
    """The one of this process; all topics share what it has answered."""
    return SchemaRegistry(address)
