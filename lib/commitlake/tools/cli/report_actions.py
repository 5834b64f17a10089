"""The actions of the served page: list hanging transactions, resume discarded ones, recall delayed messages.

Each selection is shown first and then sent, once and only as it was shown. A request must know the token, which the
command prints in the page's address: other users of the machine reach the port, too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import duckdb

from commitlake.config import Config
from commitlake.errors import CommitLakeError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions import delayed as delayed_messages
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import COLUMNS, Wanted, found
from commitlake.tools.cli import bulk, delayed
from commitlake.tools.cli.options import with_address
from commitlake.tools.report.page import document, table

_MOST_SHOWN, _MOST_SENT = 100, 1_000
_RATE = 200
_FILTERS = {"resume": ("group", "topic", "reason", "keys", "remark"), "recall": ("topic", "keys")}
_SAID = {"resume": "Resume discarded transactions", "recall": "Recall delayed messages"}
_COLUMNS = {"resume": (*COLUMNS, "keys"), "recall": delayed_messages.COLUMNS}
LINKS = '<nav><a href="/hanging">What hangs</a><a href="/resume">Resume</a><a href="/recall">Recall</a></nav>'
"""HTML for the page about the last hours."""
_BACK = '<nav><a href="/">The last hours</a></nav>'

Form = Mapping[str, str]
Rows = Sequence[Mapping[str, Any]]


class Actions:
    """The pages of the actions.

    Args:
        settings: the coordinator's configuration, with Kafka's address.

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
            return self._again(name, form, f"{len(rows)} are chosen, and {_MOST_SENT} can be; choose fewer")
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
            return lambda: self._waiting(given), lambda rows: delayed.send_recalls(settings, rows)
        wanted = Wanted(("DISCARDED",), given["group"], given["topic"], given["reason"], keys=given["keys"])
        plan = bulk.BulkDecision("RESUME", wanted, (), None, f"{given['remark']} (by {bulk.who()}, on the page)", _RATE)
        return lambda: self._chosen(plan), lambda rows: bulk.send(settings, plan, rows)

    def _chosen(self, plan: bulk.BulkDecision) -> Rows:
        with opened(self._settings.warehouse) as tables:
            rows: Rows = bulk.chosen_by(tables, plan).to_pylist()
        return rows

    def _waiting(self, given: Mapping[str, str | None]) -> Rows:
        with opened(self._settings.warehouse) as tables:
            rows: Rows = delayed_messages.waiting(tables, given["topic"], given["keys"]).to_pylist()
        return rows

    def _hanging(self) -> Rows:
        wanted = Wanted(("PENDING",), older_than_ms=self._settings.transaction.hangs_after_ms)
        with opened(self._settings.warehouse) as tables:
            rows: Rows = found(tables, wanted, now_ms()).to_pylist()
        return [{name: row[name] for name in (*COLUMNS, "keys")} for row in reversed(rows[-_MOST_SHOWN:])]

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
    return f"{sent} are sent. What came of them is in the tables within some seconds."


def _digest(name: str, form: Form, rows: Rows) -> str:
    """A digest by which the rows to send are compared with those that were shown."""
    places = sorted((row["queue"], row["queue_offset"], row.get("round", 0)) for row in rows)
    return hashlib.sha256(repr((name, [form.get(field) for field in _FILTERS[name]], places)).encode()).hexdigest()


def _document(title: str, body: str) -> str:
    return document(title, f"<h1>{title}</h1>{_BACK}<section>{body}</section>")
