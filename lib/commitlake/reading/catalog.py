"""Where a warehouse's tables are: in a directory, or in a catalog, by its schema's place or Unity Catalog's API."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from commitlake.config import CatalogConfig, Config
from commitlake.config.locations import CATALOG
from commitlake.config.object_store import storage_options
from commitlake.config.secret_references import resolve
from commitlake.errors import (
    AnswerError,
    CatalogAwayError,
    CommitLakeError,
    ConfigError,
    NoTableError,
    WarehouseError,
)
from commitlake.protocol import topic_names
from commitlake.protocol.clock import now_ms
from commitlake.protocol.durations import HOUR_MS
from commitlake.reading.table import Options, is_table, refuse_for_spark
from commitlake.reading.web import asked

log = logging.getLogger(__name__)

_TOPICS = "topics/"
_PATIENCE_S = 10.0
_LOOK_AGAIN_S, _AGAIN_MS = 60.0, 30_000
"""Time until a table's place is asked for again; and, after a failed renewal, credentials that are still valid."""
_BUSY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_OPTIONS = {
    "aws_temp_credentials": {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
    },
    "azure_user_delegation_sas": {"sas_token": "AZURE_STORAGE_SAS_TOKEN"},
}
"""deltalake's options, by the names of Unity Catalog. For `gcp_oauth_token` deltalake 1.6 has none, so on GCS the
process's own credentials count."""


class Place(NamedTuple):
    """A table's directory or URI, and deltalake's options to read it."""

    uri: str
    options: Options


def location(where: Config | str, name: str, options: Options = None) -> Place:
    """Where a table is; `topics/<topic>` is the table of a topic.

    Args:
        where: the configuration, or just the directory or URI of a warehouse.
        name: the table.
        options: the caller's, which win over those of a catalog.

    Raises:
        NoTableError: Unity Catalog has no such table. For a table that is elsewhere this is found when it is opened.
        WarehouseError: deltalake can't read what is there, or Unity Catalog does not answer.
    """
    topic = name.removeprefix(_TOPICS) if name.startswith(_TOPICS) else None
    if isinstance(where, str) or not where.is_in_catalog:
        return Place(_in_directory(where if isinstance(where, str) else where.warehouse, name, topic), options)
    check_readable(where)
    table = name if topic is None else topic_names.catalog_name(topic)
    if where.catalog.location:  # Hive's names, and Spark's own, are in lower case
        return Place(f"{where.catalog.location.rstrip('/')}/{table.lower()}", options)
    found = _table(where.catalog, f"{where.warehouse.removeprefix(CATALOG)}.{table}")
    given = storage_options(options) or {}
    return Place(place := found.place(), _Vended(found, place, tuple(given.items())))


def described(where: Config | str, name: str) -> str:
    """A table's place for a person; its name, where Unity Catalog can't tell the place."""
    try:
        return location(where, name).uri
    except WarehouseError:
        return f"{where if isinstance(where, str) else where.warehouse}, {name}"


def check_readable(conf: Config) -> None:
    """Refuse a warehouse that only Spark can read; no store and no catalog is asked.

    Raises:
        WarehouseError: deltalake can't read what is there.
    """
    if not (conf.is_in_catalog and conf.catalog.url):
        refuse_for_spark(conf.tables_at)


def _in_directory(warehouse: str, name: str, topic: str | None) -> str:
    refuse_for_spark(warehouse)
    root = warehouse.rstrip("/")
    older = None if topic is None else topic_names.older_path_name(topic)
    if older is not None and is_table(place := f"{root}/{_TOPICS}{older}"):
        return place
    return f"{root}/{name if topic is None else _TOPICS + topic_names.path_name(topic)}"


class _Table:
    """A table of Unity Catalog: its place, and credentials that are renewed while they are still valid."""

    def __init__(self, catalog: CatalogConfig, name: str) -> None:
        self._catalog, self._name, self._lock = catalog, name, threading.Lock()
        self._found: Mapping[str, Any] = {}
        self._look_at_s = 0.0
        self._options: dict[str, str] = {}
        self._renew_at_ms = self._expires_ms = 0

    def place(self) -> str:
        """The directory or URI of the table."""
        with self._lock:
            self._ask_for_table()
            place = str(self._found.get("storage_location") or "")
        if not place:
            msg = f"catalog.url: {self._catalog.url} names no place of {self._name}; give a table, and not a view"
            raise WarehouseError(msg)
        refuse_for_spark(place)
        return place

    def options(self, place: str) -> dict[str, str]:
        """The `storage_options` of deltalake, with credentials that are valid for some time."""
        with self._lock:
            if now_ms() >= self._renew_at_ms:
                self._renew()
            if self._found.get("storage_location") != place:
                msg = f"the table {self._name} was deleted and made again while it was read; start again"
                raise WarehouseError(msg)
            return self._options

    def _ask_for_table(self) -> None:
        if self._found and time.monotonic() < self._look_at_s:
            return
        found = _asked(self._catalog, f"tables/{quote(self._name, safe='')}", self._name)
        if found.get("table_id") != self._found.get("table_id"):
            self._renew_at_ms = self._expires_ms = 0
        self._found, self._look_at_s = found, time.monotonic() + _LOOK_AGAIN_S

    def _renew(self) -> None:
        try:
            self._ask_for_table()
            wanted = {"table_id": self._found.get("table_id"), "operation": "READ"}
            told = _asked(self._catalog, "temporary-table-credentials", self._name, wanted)
        except CommitLakeError as error:  # also a token that has expired, and is being replaced
            if (now := now_ms()) >= self._expires_ms:
                raise
            log.warning("the credentials of %s are not renewed, and still valid: %s", self._name, error)
            self._renew_at_ms = min(now + _AGAIN_MS, self._expires_ms)
            return
        given = {kind: told.get(kind) or {} for kind in _OPTIONS}
        self._options = {
            option: str(given[kind][name])
            for kind, names in _OPTIONS.items()
            for name, option in names.items()
            if given[kind].get(name)
        }
        now = now_ms()
        self._expires_ms = int(told.get("expiration_time") or now + HOUR_MS)
        self._renew_at_ms = now + (self._expires_ms - now) * 3 // 4


_table = cache(_Table)
"""One for all of this process that read the table."""


@dataclass(frozen=True)
class _Vended:
    """The `storage_options` for a table of Unity Catalog, made anew each time, with valid credentials."""

    table: _Table
    place: str
    given: tuple[tuple[str, str], ...]

    def __call__(self) -> dict[str, str]:
        return {**self.table.options(self.place), **dict(self.given)}

    def __repr__(self) -> str:
        return f"options of {self.place}"


def _asked(catalog: CatalogConfig, path: str, table: str, body: object = None) -> dict[str, Any]:
    """The answer of Unity Catalog.

    Raises:
        NoTableError: it has no such table.
        CatalogAwayError: it does not answer now.
        WarehouseError: it refuses.
    """
    proof = f"Bearer {_token(catalog)}" if catalog.token else ""
    try:
        return asked(f"{catalog.url}/{path}", _PATIENCE_S, proof, body)
    except AnswerError as error:
        raise _refusal(catalog, table, error) from None


def _token(catalog: CatalogConfig) -> str:
    token = resolve("catalog.token", catalog.token).strip()
    if not (token.isascii() and token.isprintable()):  # an error of HTTP's library would show it
        msg = f"catalog.token: what {catalog.token} names is no token: it has a line break, or letters beyond ASCII"
        raise ConfigError(msg)
    return token


def _refusal(catalog: CatalogConfig, table: str, error: AnswerError) -> WarehouseError:
    told = f"catalog.url: asked about {table}, {catalog.url} {error}"
    if error.status == HTTPStatus.NOT_FOUND:
        return NoTableError(f"there is no table {table} in the catalog: {catalog.url} {error}; check both, or wait")
    if error.status is None or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status in _BUSY:
        return CatalogAwayError(f"{told}; check the URL, or wait")
    grants = "USE CATALOG, USE SCHEMA, EXTERNAL USE SCHEMA and SELECT"
    return WarehouseError(f"{told}; check the URL, catalog.token, and that its owner has {grants}")
