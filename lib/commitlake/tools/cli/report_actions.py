"""What the served page offers to do: look at what hangs, resume what was discarded, recall what is delayed.

Each is shown first and sent then, and only as it was shown. A form is taken from a page of this server alone: it has a
word that another site's page can't read, and the request must name the loopback address, as no rebound name does.
"""

from __future__ import annotations

import getpass
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from commitlake.config import Config
from commitlake.errors import CommitLakeError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.delayed import waiting
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import COLUMNS, Wanted, found
from commitlake.tools.cli import bulk, delayed
from commitlake.tools.cli.options import need_address
from commitlake.tools.report.page import document, table

_MOST_SHOWN = 100
_RATE = 200
_FILTERS = {"resume": ("group", "topic", "reason", "keys", "remark"), "recall": ("topic", "keys")}
_NEEDED = {"resume": ("remark",), "recall": ("topic", "keys")}
_SAID = {"resume": "Resume discarded transactions", "recall": "Recall delayed messages"}
LINKS = '<nav><a href="/hanging">What hangs</a><a href="/resume">Resume</a><a href="/recall">Recall</a></nav>'
"""HTML for the page about the last hours."""
_BACK = '<nav><a href="/">The last hours</a></nav>'

Form = Mapping[str, str]
Rows = Sequence[Mapping[str, Any]]


class Actions:
    """The pages of the actions.

    Args:
        settings: the coordinator's configuration, with Kafka's address.
    """

    def __init__(self, settings: Config) -> None:
        need_address(settings)
        self._settings = settings
        self._word = secrets.token_urlsafe()

    def page(self, path: str) -> str | None:
        """The page at a path; None where there is none."""
        if path == "/hanging":
            return _document("What hangs", table(self._hanging(), "nothing hangs"))
        name = path.removeprefix("/")
        return _document(_SAID[name], self._form(name, {})) if name in _SAID else None

    def answer(self, path: str, form: Form) -> tuple[int, str]:
        """The status and the page after a form was sent: what is chosen, or that it is sent."""
        name = path.removeprefix("/")
        if name not in _SAID:
            return 404, _document("Not found", "<p>there is no such page</p>")
        if not secrets.compare_digest(form.get("word", "").encode(), self._word.encode()):
            return 403, _document("Refused", "<p>this form is of another page; load it again</p>")
        missing = [field for field in _NEEDED[name] if not form.get(field)]
        if missing:
            return 400, _document(_SAID[name], f"<p>{missing[0]} is missing</p>{self._form(name, form)}")
        try:
            return 200, _document(_SAID[name], self._done(name, form))
        except CommitLakeError as error:
            return 400, _document(_SAID[name], f"<p>{escape(str(error))}</p>{self._form(name, form)}")

    def _done(self, name: str, form: Form) -> str:
        choose, send = self._steps(name, form)
        rows = choose()
        shown = _digest(rows)
        if rows and form.get("shown") == shown:
            send(rows)
            return f"<p>{len(rows)} are sent. What came of them is in the tables within some seconds.</p>"
        changed = "<p>It has changed meanwhile.</p>" if form.get("shown") else ""
        button = self._form(name, form, shown, f"Send {len(rows)}") if rows else self._form(name, form)
        listed = [{key: value for key, value in row.items() if key in COLUMNS} for row in rows[:_MOST_SHOWN]]
        return f"{changed}<p>{len(rows)} are chosen.</p>{table(listed, 'nothing is chosen')}{button}"

    def _steps(self, name: str, form: Form) -> tuple[Callable[[], Rows], Callable[[Rows], None]]:
        settings = self._settings
        given = {field: form.get(field) or None for field in _FILTERS[name]}
        if name == "recall":
            return lambda: self._waiting(given), lambda rows: delayed.send_recalls(settings, rows)
        wanted = Wanted(("DISCARDED",), given["group"], given["topic"], given["reason"], keys=given["keys"])
        told = f"{given['remark']} (by {getpass.getuser()}, on the page)"
        plan = bulk.BulkDecision("RESUME", wanted, (), None, told, _RATE)

        def send(rows: Rows) -> None:
            for _ in bulk.send(settings, plan, rows):
                pass

        return lambda: self._chosen(plan), send

    def _chosen(self, plan: bulk.BulkDecision) -> Rows:
        with opened(self._settings.warehouse) as tables:
            rows: Rows = bulk.chosen_by(tables, plan).to_pylist()
        return rows

    def _waiting(self, given: Mapping[str, str | None]) -> Rows:
        with opened(self._settings.warehouse) as tables:
            rows: Rows = waiting(tables, given["topic"], given["keys"]).to_pylist()
        return rows

    def _hanging(self) -> Rows:
        timing = self._settings.transaction
        age_ms = timing.timeout_ms + 3 * timing.check_interval_ms
        with opened(self._settings.warehouse) as tables:
            rows: Rows = found(tables, Wanted(("PENDING",), older_than_ms=age_ms), now_ms()).to_pylist()
        return [{name: row[name] for name in (*COLUMNS, "keys")} for row in reversed(rows[-_MOST_SHOWN:])]

    def _form(self, name: str, form: Form, shown: str = "", button: str = "Show") -> str:
        """A form; with `shown` its fields can't be changed, so what is sent is what was shown."""
        fixed = " readonly" if shown else ""
        fields = "".join(
            f'<label>{field}<input name="{field}" value="{escape(form.get(field, ""))}"{fixed}></label>'
            for field in _FILTERS[name]
        )
        hidden = {"word": self._word, "shown": shown}
        kept = "".join(f'<input type="hidden" name="{key}" value="{value}">' for key, value in hidden.items())
        return f'<form method="post" action="/{name}">{fields}{kept}<button>{button}</button></form>'


def _digest(rows: Rows) -> str:
    """What tells whether the same is chosen as was shown."""
    places = sorted((row["queue"], row["queue_offset"], row.get("round", 0)) for row in rows)
    return hashlib.sha256(repr(places).encode()).hexdigest()


def _document(title: str, body: str) -> str:
    return document(title, f"<h1>{title}</h1>{_BACK}<section>{body}</section>")
