"""The work of `commitlake report`: writes the page, or serves it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import duckdb

from commitlake.config import Config
from commitlake.errors import CommitLakeError, SetupError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import opened
from commitlake.tools.cli.report_actions import LINKS, Actions
from commitlake.tools.report.figures import read
from commitlake.tools.report.page import document, page

_REFRESH_S = 30
_COOKIE = "commitlake"
_HERE = re.compile(r"(?:127\.0\.0\.1|localhost)(?::([0-9]{1,5}))?")
_UNKNOWN = "open the address that the command has printed, with its token"


def make(settings: Config, since_ms: int, refresh_s: int | None = None, links: str = "") -> str:
    """The page of the last `since_ms`."""
    now = now_ms()
    with opened(settings.warehouse) as tables:
        return page(read(tables, now - since_ms, now), settings.warehouse, refresh_s, links)


def write(settings: Config, since_ms: int, out: Path) -> int:
    """Write the page to a file; returns the exit code."""
    text = make(settings, since_ms)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"--out: cannot write {out}: {error.strerror}; name a file in a directory that is there"
        raise SetupError(msg) from error
    print(f"{out}: {len(text) / 1024:.0f} KiB")
    return 0


def serve(settings: Config, since_ms: int, port: int, *, with_actions: bool = False) -> int:
    """Serve the page on the loopback address until Ctrl-C, a new one for each request; returns the exit code.

    Args:
        settings: the coordinator's configuration.
        since_ms: how far the page looks back.
        port: the port; 0 for any that is free.
        with_actions: offer `Actions` too.
    """
    actions = Actions(settings) if with_actions else None
    made = partial(make, settings, since_ms, _REFRESH_S, LINKS if actions else "")
    with ThreadingHTTPServer(("127.0.0.1", port), partial(ReportHandler, made, actions)) as server:
        token = f"/?token={actions.token}" if actions else ""
        print(f"http://127.0.0.1:{server.server_address[1]}{token}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


class ReportHandler(BaseHTTPRequestHandler):
    """Answers with the page, and with the pages of the actions where they are offered.

    Args:
        made: makes the page about the last hours.
        actions: None: only that page is offered.
        given: the server's own arguments.
    """

    def __init__(self, made: Callable[[], str], actions: Actions | None, *given: Any) -> None:
        self._made, self._actions = made, actions
        super().__init__(*given)

    def parse_request(self) -> bool:
        """Whether the request names this host: another site's page may use a name that has come to lead here."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        here = _HERE.fullmatch(host)
        if here is None:
            self._answer(403, f"this page is that of 127.0.0.1 or localhost, not of '{escape(host)}'; open it there")
            return False
        self._cookie = f"{_COOKIE}-{here[1] or 80}"  # a browser sends a host's cookies to each of its ports
        return True

    def do_GET(self) -> None:
        """Answer a request for a page; the token in its address becomes a cookie, and so leaves the address."""
        parts = _parts(self.path)
        if self._actions is None:
            self._answer_page()
        elif self._actions.knows(dict(parse_qsl(parts.query)).get("token", "")):
            cookie = f"{self._cookie}={self._actions.token}; HttpOnly; SameSite=Strict; Path=/"
            self._answer(303, "", {"Location": "/", "Set-Cookie": cookie})
        elif not self._is_known(self._actions):
            self._answer(403, _UNKNOWN)
        elif parts.path == "/":
            self._answer_page()
        else:
            found = self._actions.page(parts.path)
            self._answer(200 if found else 404, found or "there is no such page")

    def do_POST(self) -> None:
        """Answer a form."""
        size = self.headers.get("Content-Length", "")
        if self._actions is None or not re.fullmatch("[0-9]{1,5}", size):
            self._answer(400, "this is no form of the page")
        elif not self._is_known(self._actions):
            self._answer(403, _UNKNOWN)
        else:
            text = self.rfile.read(int(size)).decode(errors="replace")
            form = dict(parse_qsl(text, keep_blank_values=True))
            self._answer(*self._actions.answer(_parts(self.path).path, form))

    def _answer_page(self) -> None:
        try:
            self._answer(200, self._made())
        except (CommitLakeError, duckdb.Error) as error:  # e.g. no warehouse; the next request may find it
            self._answer(503, document("no answer", f"<p>{escape(str(error))}</p>", _REFRESH_S))

    def _is_known(self, actions: Actions) -> bool:
        """Whether the request knows the token, whatever cookies other programs on this host have set."""
        cookies = (each.strip().partition("=") for each in self.headers.get("Cookie", "").split(";"))
        return any(name == self._cookie and actions.knows(value) for name, _, value in cookies)

    def _answer(self, status: int, text: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        fixed = {"X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
        for name, value in {**fixed, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no request."""


def _parts(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # such as http://[/
        return urlsplit("/unreadable")
