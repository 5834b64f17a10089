"""The served page: what hangs, what was discarded and what is delayed; each is shown first, and sent as shown."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from http.cookiejar import CookieJar
from http.server import ThreadingHTTPServer
from urllib.parse import urlencode

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake

from commitlake.config import from_mapping
from commitlake.tools.cli.report import Actions, ReportHandler

Answer = tuple[int, str]
Ask = Callable[..., Answer]


@contextmanager
def served(lake: Lake, *more: str) -> Iterator[Ask]:
    """Asks a served page: for a path, with a form or without, by a name of its host."""
    sets = [f"--set={key}={value}" for key, value in lake.settings.items() if not isinstance(value, dict)]
    words = [sys.executable, "-m", "commitlake.tools.cli", "report", "--serve", *sets, *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        printed = server.stdout.readline().strip()
        address = printed.partition("/?")[0]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        browser.open(printed, timeout=60).close()

        def ask(
            path: str, form: dict[str, str] | None = None, host: str | None = None, *, is_stranger: bool = False
        ) -> Answer:
            request = urllib.request.Request(address + path, urlencode(form).encode() if form is not None else None)
            request.add_header("Host", host or address.removeprefix("http://"))
            try:
                with (urllib.request.urlopen if is_stranger else browser.open)(request, timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        try:
            yield ask
        finally:
            server.terminate()


def fields(page: str) -> dict[str, str]:
    """What a browser would send with the page's form."""
    return {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', page)}


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Lake:
    """Two discarded transactions of a topic, one of another, one that hangs, and two delayed messages of a key."""
    for tid, topic in (("one", "orders"), ("two", "orders"), ("other", "bills")):
        lake.half(tid, topic=topic)
    due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
    for name, keys in (("first", "A"), ("second", "A"), ("third", "B")):
        lake.message(name, topic="reminders", keys=keys, delays=due)
    lake.run(spark, transaction_timeout="0s")
    lake.answer_unknown()
    lake.run(spark, transaction_timeout="0s", transaction_check_interval="1ms")
    lake.half("hangs <b>")
    lake.run(spark)
    return lake


def test_what_was_shown_is_sent_and_nothing_else(spark: SparkSession, story: Lake) -> None:
    timings = ("--set=transaction.timeout=1ms", "--set=transaction.check_interval=1ms")
    with served(story, "--actions", *timings) as ask:
        assert 'href="/resume"' in ask("/")[1]
        hanging = ask("/hanging")[1]
        assert "hangs &lt;b&gt;" in hanging and ">one<" not in hanging

        form = fields(ask("/resume")[1]) | {"topic": "orders"}
        assert ask("/resume", form)[0] == 400  # no remark
        form["remark"] = "the database is back"
        assert ask("/resume", form | {"topic": ""})[0] == 400  # not all that there are
        code, shown = ask("/resume", form)
        assert code == 200 and "2 are chosen" in shown and ">other<" not in shown
        for other in ({"topic": "bills"}, {"remark": "another"}):
            assert "It has changed meanwhile" in ask("/resume", fields(shown) | other)[1]
        assert "2 are sent" in ask("/resume", fields(shown))[1]
        assert "or was sent already" in ask("/resume", fields(shown))[1]  # a page that is loaded again

        shown = ask("/recall", fields(ask("/recall")[1]) | {"topic": "reminders", "keys": "A"})[1]
        assert "2 are chosen" in shown and ">second<" in shown and "deliver at" in shown
        assert "2 are sent" in ask("/recall", fields(shown))[1]
        assert "nothing is chosen" in ask("/recall", fields(shown) | {"topic": "nothing"})[1]

        for path, sent, host in (
            ("/resume", fields(shown) | {"token": ""}, None),  # a page of another site
            ("/resume", fields(shown), "rebound.example:80"),
            ("/resume", None, "rebound.example:80"),
            ("/", None, "rebound.example:80"),
        ):
            assert ask(path, sent, host)[0] == 403
        assert [ask(path, is_stranger=True)[0] for path in ("/", "/resume", "/?token=guessed")] == [403] * 3
        assert ask("/elsewhere")[0] == 404
    story.run(spark)
    assert {row["transaction_id"] for row in story.rows("op") if row["decision"] == "RESUME"} == {"one", "two"}
    assert len([row for row in story.rows("reentries") if row["round"] == 1]) == 2
    recalled = [row["message_id"] for row in story.rows("deliveries") if row["state"] == "RECALLED"]
    assert sorted(recalled) == ["first", "second"]
    (remark,) = {row["remark"] for row in story.rows("op") if row["decision"] == "RESUME"}
    assert remark.startswith("the database is back (by ")


def test_without_the_option_there_is_nothing_to_do(lake: Lake, spark: SparkSession) -> None:
    lake.run(spark)
    with served(lake) as ask:
        assert "/resume" not in ask("/")[1]
        assert ask("/resume", {})[0] == 400


@contextmanager
def handled(actions: Actions | None) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Asks a handler without a warehouse: for a path, by headers; the status, the text and the cookie that it sets."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(ReportHandler, lambda: "the page", actions)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"127.0.0.1:{server.server_port}"

        def ask(path: str, **headers: str) -> tuple[int, str, str]:
            connection = HTTPConnection(here, timeout=60)
            connection.request("GET", path, headers={"Host": here, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.getheader("Set-Cookie", "").partition(";")[0]

        try:
            yield ask
        finally:
            server.shutdown()


@pytest.fixture
def actions() -> Actions:
    return Actions(from_mapping({"kafka.bootstrap_servers": "kafka:9092"}))


@pytest.mark.parametrize("has_actions", [False, True])
def test_a_name_that_leads_to_the_loopback_address_gets_no_page(actions: Actions, has_actions: bool) -> None:
    """A page of another site would read it, once its name is that of the loopback address."""
    with handled(actions if has_actions else None) as ask:
        for path in ("/", f"/?token={actions.token}"):
            for host in ("rebound.example", "rebound.example:80", "127.0.0.1.rebound.example", "", "localhost:1;a"):
                status, text, cookie = ask(path, Host=host)
                assert (status, cookie) == (403, ""), host
                assert "127.0.0.1 or localhost" in text
        assert "&lt;b&gt;" in ask("/", Host="<b>")[1]


def test_the_page_is_there_behind_a_tunnel_from_another_port(actions: Actions) -> None:
    for host in ("localhost:8080", "127.0.0.1:8080", "localhost"):
        with handled(None) as ask:
            assert ask("/", Host=host)[:2] == (200, "the page")
        with handled(actions) as ask:
            assert ask("/", Host=host)[0] == 403
            cookie = ask(f"/?token={actions.token}", Host=host)[2]
            assert ask("/", Host=host, Cookie=cookie)[:2] == (200, "the page")


@pytest.mark.parametrize("other", ['x={"a":1}', "a[b]=1", "a=b]c", "=", "a", 'q="', "commitlake=1"])
def test_cookies_of_other_programs_on_this_host_lock_nobody_out(actions: Actions, other: str) -> None:
    with handled(actions) as ask:
        cookie = ask(f"/?token={actions.token}")[2]
        name = cookie.partition("=")[0]
        for cookies in (f"{other}; {cookie}", f"{cookie}; {other}", f"{name}=another; {cookie}"):
            assert ask("/", Cookie=cookies)[0] == 200
        assert ask("/", Cookie=other)[0] == 403


def test_two_served_pages_have_cookies_of_their_own(actions: Actions) -> None:
    """A browser keeps one cookie of a name for a host, whatever the port."""
    with handled(actions) as first, handled(actions) as second:
        names = {ask(f"/?token={actions.token}")[2].partition("=")[0] for ask in (first, second)}
    assert len(names) == 2


def test_a_form_does_not_hold_what_opens_the_page(actions: Actions) -> None:
    """A page that was saved or sent on gives no access."""
    form = actions.page("/resume")
    assert form is not None
    assert actions.token not in form
    assert actions.answer("/resume", {"token": actions.token})[0] == 403
    assert actions.answer("/resume", fields(form))[0] == 400
