"""The work of `commitlake report`: writes the page, or serves it, with actions where they are asked for.

The actions list hanging transactions, resume discarded ones and recall delayed messages. Each selection is shown first
and then sent, once and only as it was shown. A request must know the token, which the command prints in the page's
address: other users of the machine reach the port, too.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import duckdb
import pyarrow as pa

from commitlake.config import Config
from commitlake.errors import CommitLakeError, SetupError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions import delayed as delayed_messages
from commitlake.reading.questions.tables import Tables, opened
from commitlake.reading.questions.transactions import COLUMNS, Wanted, found
from commitlake.tools import doctor
from commitlake.tools.cli import bulk
from commitlake.tools.cli.options import with_address
from commitlake.tools.findings import verdict
from commitlake.tools.report.figures import read
from commitlake.tools.report.page import document, page, table

_REFRESH_S = 30
_COOKIE = "commitlake"
_HERE = re.compile(r"(?:127\.0\.0\.1|localhost)(?::([0-9]{1,5}))?")
_UNKNOWN = "open the address that the command printed, with its token"
_MOST_SHOWN, _MOST_SENT = 100, 1_000
_RATE = 200
_FILTERS = {"resume": ("group", "topic", "reason", "keys", "remark"), "recall": ("topic", "keys")}
_SAID = {"resume": "Resume discarded transactions", "recall": "Recall delayed messages"}
_COLUMNS = {"resume": (*COLUMNS, "keys"), "recall": delayed_messages.COLUMNS}
_LINKS = '<nav><a href="/hanging">What hangs</a><a href="/resume">Resume</a><a href="/recall">Recall</a></nav>'
"""HTML for the page about the last hours."""
_BACK = '<nav><a href="/">The last hours</a></nav>'

Form = Mapping[str, str]
Rows = Sequence[Mapping[str, Any]]


def make(settings: Config, since_ms: int, refresh_s: int | None = None, links: str = "") -> str:
    """The page of the last `since_ms`."""
    now = now_ms()
    with opened(settings) as tables:
        figures = read(tables, now - since_ms, now)
    found = list(doctor.examine(settings))
    findings = (astuple(each) for each in (verdict(found), *found))
    return page(figures, settings.warehouse, refresh_s, links, findings)


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

    At port 0 it takes any port that is free.
    """
    actions = Actions(settings) if with_actions else None
    made = partial(make, settings, since_ms, _REFRESH_S, _LINKS if actions else "")
    with ThreadingHTTPServer(("127.0.0.1", port), partial(ReportHandler, made, actions)) as server:
        token = f"/?token={actions.token}" if actions else ""
        print(f"http://127.0.0.1:{server.server_address[1]}{token}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


class ReportHandler(BaseHTTPRequestHandler):
    """Answers with the page, and with the pages of the actions where they are offered."""

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


class Actions:
    """The pages of the actions.

    Attributes:
        token: the secret that a request must know.
    """

    def __init__(self, settings: Config) -> None:
        self._settings = with_address(settings)
        self.token, self._form_token = secrets.token_urlsafe(), secrets.token_urlsafe()
        self._offered: set[str] = set()

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return _is_same(token, self.token)

    def page(self, path: str) -> str | None:
        """The page at a path; None where there is none."""
        if path == "/hanging":
            try:
                return _document("What hangs", table(self._hanging(), "nothing hangs"))
            except (CommitLakeError, duckdb.Error) as error:
                return _document("What hangs", f"<p>{escape(str(error))}</p>")
        name = path.removeprefix("/")
        return _document(_SAID[name], self._form(name, {})) if name in _SAID else None

    def answer(self, path: str, form: Form) -> tuple[int, str]:
        """The status and the page after a form was submitted: the rows that are chosen, or how many were sent."""
        name = path.removeprefix("/")
        if name not in _SAID:
            return 404, _document("Not found", "<p>there is no such page</p>")
        if not _is_same(form.get("token", ""), self._form_token):  # another site's page can't read it
            return 403, _document("Refused", "<p>this form is of another page; load it again</p>")
        wrong = _wrong(name, form)
        try:
            return (400, self._again(name, form, wrong)) if wrong else (200, self._done(name, form))
        except (CommitLakeError, duckdb.Error) as error:
            return 400, self._again(name, form, str(error))

    def _again(self, name: str, form: Form, why: str) -> str:
        return _document(_SAID[name], f"<p>{escape(why)}</p>{self._form(name, form)}")

    def _done(self, name: str, form: Form) -> str:
        choose, send = self._steps(name, form)
        rows = choose()
        shown = _digest(name, form, rows)
        given = form.get("shown")
        if rows and given == shown and shown in self._offered:
            self._offered.remove(shown)
            return _document(_SAID[name], f"<p>{_sent(send(rows), len(rows))}</p>")
        if not rows:
            return self._again(name, form, "nothing is chosen")
        if len(rows) > _MOST_SENT:
            return self._again(name, form, f"{len(rows)} are chosen; choose {_MOST_SENT} at most")
        self._offered.add(shown)
        changed = "<p>It has changed meanwhile, or was sent already.</p>" if given else ""
        listed = [{key: row[key] for key in _COLUMNS[name]} for row in rows[:_MOST_SHOWN]]
        more = f", {_MOST_SHOWN} of them here" if len(rows) > _MOST_SHOWN else ""
        button = self._form(name, form, shown, f"Send {len(rows)}")
        return _document(_SAID[name], f"{changed}<p>{len(rows)} are chosen{more}.</p>{table(listed, '')}{button}")

    def _steps(self, name: str, form: Form) -> tuple[Callable[[], Rows], Callable[[Rows], Iterator[int]]]:
        settings = self._settings
        given = {field: form.get(field) or None for field in _FILTERS[name]}
        if name == "recall":
            waiting = partial(delayed_messages.waiting, topic=given["topic"], keys=given["keys"])
            return lambda: self._rows(waiting), lambda rows: bulk.send_recalls(settings, rows)
        wanted = Wanted(("DISCARDED",), given["group"], given["topic"], given["reason"], keys=given["keys"])
        plan = bulk.BulkDecision("RESUME", wanted, (), None, f"{given['remark']} (by {bulk.who()}, on the page)", _RATE)
        return lambda: self._rows(partial(bulk.chosen_by, plan=plan)), lambda rows: bulk.send(settings, plan, rows)

    def _hanging(self) -> Rows:
        wanted = Wanted(("PENDING",), older_than_ms=self._settings.transaction.hangs_after_ms)
        rows = self._rows(lambda tables: found(tables, wanted, now_ms()))
        return [{name: row[name] for name in (*COLUMNS, "keys")} for row in reversed(rows[-_MOST_SHOWN:])]

    def _rows(self, question: Callable[[Tables], pa.Table]) -> Rows:
        with opened(self._settings) as tables:
            rows: Rows = question(tables).to_pylist()
        return rows

    def _form(self, name: str, form: Form, shown: str = "", button: str = "Show") -> str:
        """A form; with `shown` its fields can't be changed, so what is sent is what was shown."""
        fixed = " readonly" if shown else ""
        fields = "".join(
            f'<label>{field}<input name="{field}" value="{escape(form.get(field, ""))}"{fixed}></label>'
            for field in _FILTERS[name]
        )
        hidden = {"token": self._form_token, "shown": shown}
        kept = "".join(f'<input type="hidden" name="{key}" value="{value}">' for key, value in hidden.items())
        return f'<form method="post" action="/{name}">{fields}{kept}<button>{button}</button></form>'


def _is_same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _wrong(name: str, form: Form) -> str:
    """Text for an error where a form lacks a field that the command requires; empty where it does not."""
    if name == "recall":
        return "" if form.get("topic") and form.get("keys") else "topic and keys are needed"
    if not form.get("remark"):
        return "a remark is needed; it is kept in the table op"
    chosen = any(form.get(field) for field in _FILTERS[name] if field != "remark")
    return "" if chosen else "choose by group, topic, reason or keys"


def _sent(numbers: Iterator[int], many: int) -> str:
    sent = 0
    try:
        for sent in numbers:  # noqa: B007
            pass
    except CommitLakeError as error:
        return f"{sent} of {many} are sent: {escape(str(error))}"
    return f"{sent} are sent. The tables have the results within some seconds."


def _digest(name: str, form: Form, rows: Rows) -> str:
    """A digest by which the rows to send are compared with those that were shown."""
    places = sorted((row["queue"], row["queue_offset"], row.get("round", 0)) for row in rows)
    return hashlib.sha256(repr((name, [form.get(field) for field in _FILTERS[name]], places)).encode()).hexdigest()


def _document(title: str, body: str) -> str:
    return document(title, f"<h1>{title}</h1>{_BACK}<section>{body}</section>")
