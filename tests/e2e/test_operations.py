"""The commands `ledger` and `admin`, delayed messages by key, and the served page, on what a coordinator wrote."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from http.client import HTTPConnection
from http.cookiejar import CookieJar
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

import pytest
from pyspark.sql import SparkSession
from tests.support.lake import Lake
from tests.support.namespace import Listener
from tests.support.polling import wait_for, wait_until_equal
from tests.support.tables import rows
from typer.testing import CliRunner

import commitlake
from commitlake import DefaultMQProducer, LocalTransactionState, Message, TransactionMQProducer
from commitlake.config import from_mapping
from commitlake.coordinator.coordinator import Coordinator
from commitlake.errors import ProducerError, TransactionNotFoundError
from commitlake.protocol.clock import now_ms
from commitlake.protocol.recall_handle import decode_handle
from commitlake.reading.questions.tables import opened
from commitlake.reading.questions.transactions import Wanted, found
from commitlake.spark import process
from commitlake.tools.audit import admin, ledger
from commitlake.tools.cli import app
from commitlake.tools.cli.report import Actions, ReportHandler

TOPIC, GROUP = "operations", "operators"
COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)


@pytest.fixture(scope="module")
def sent(coordinator: Coordinator) -> Iterator[dict[str, str]]:
    """Transaction ids by what became of them; `discarded` and `resumed` stay unknown to the producer."""
    kafka = coordinator.config.kafka
    where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
    with TransactionMQProducer(GROUP, Listener(check=UNKNOW), **where) as producer:

        def send(answer: LocalTransactionState, **delay: Any) -> str:
            return str(producer.send_message_in_transaction(Message(TOPIC, b"body", **delay), answer).transaction_id)

        ids = {
            "committed": send(COMMIT, check_immunity_seconds=3_600),
            "rolled back": send(ROLLBACK, check_immunity_seconds=3_600),
            "delivered": send(COMMIT, delay_milliseconds=1),
            "waiting": send(COMMIT, delay_seconds=3_600),
            "discarded": send(UNKNOW),
            "resumed": send(UNKNOW),
            "immune": send(UNKNOW, check_immunity_seconds=3_600),
            "forced": send(UNKNOW, check_immunity_seconds=3_600),
        }
        with DefaultMQProducer("plain", **where) as plain:
            plain.send(Message(TOPIC, b"normal"))
            plain.send(Message(TOPIC, b"delayed", delay_milliseconds=1))
            plain.send(Message(TOPIC, b"waiting", delay_seconds=3_600))
        yield ids


@pytest.fixture(scope="module")
def history(coordinator: Coordinator, sent: dict[str, str]) -> Callable[..., list[str]]:
    """Events of a transaction, in time order, once it has come to `until`."""

    def events(name: str) -> list[str]:
        found = ledger.transaction(coordinator.spark, coordinator.config.warehouse, sent[name])
        return [row["event"] for row in found.collect()]

    def told(name: str, until: str) -> list[str]:
        wait_for(lambda: until in events(name))
        return events(name)

    return told


def command(coordinator: Coordinator, name: str, *arguments: str) -> int:
    """Run one as in Spark's driver, with the coordinator's configuration."""
    conf = coordinator.config
    values = {
        "warehouse": conf.warehouse,
        "kafka.bootstrap_servers": conf.kafka.bootstrap_servers,
        "kafka.topic_prefix": conf.kafka.topic_prefix,
    }
    line = [name, *[f"--set={key}={value}" for key, value in values.items()], *arguments]
    with pytest.MonkeyPatch.context() as inside:
        inside.setenv(process.MEETING_PLACE, "here")
        inside.setattr(process, "exit_on_signals", lambda _: nullcontext())
        return int(app.app(line, standalone_mode=False) or 0)


@pytest.fixture(scope="module")
def decided(coordinator: Coordinator, sent: dict[str, str], history: Any) -> None:
    """What administrators did: reopened and then committed one, rolled another back while it was pending."""
    history("forced", until="half message")
    first = admin.first_half_message(coordinator.spark, coordinator.config.warehouse, sent["forced"])
    admin.send(coordinator.config.kafka, "ROLLBACK", sent["forced"], first, "customer called")
    history("resumed", until="DISCARDED")
    assert command(coordinator, "admin", "resume", sent["resumed"], "--remark", "database restored") == 0
    assert command(coordinator, "admin", "commit", sent["resumed"], "--remark", "order 17 exists") == 0


def test_the_ledger_shows_a_transaction_from_its_half_message_to_its_end(history: Any) -> None:
    assert history("committed", until="COMMITTED") == ["half message", "COMMIT op", "COMMITTED"]
    assert history("rolled back", until="ROLLED_BACK") == ["half message", "ROLLBACK op", "ROLLED_BACK"]
    assert history("delivered", until="DELIVERED")[-2:] == ["COMMITTED", "DELIVERED"]
    assert [event for event in history("discarded", until="DISCARDED") if event != "UNKNOWN op"] == [
        "half message", "check 1", "check 2", "DISCARDED",
    ]  # fmt: skip


@pytest.mark.usefixtures("decided")
def test_a_forced_end_needs_no_check_and_has_its_remark(
    coordinator: Coordinator, sent: dict[str, str], history: Any
) -> None:
    events = history("resumed", until="COMMITTED")
    assert events.index("DISCARDED") < events.index("RESUME op") < events.index("COMMITTED")
    assert history("forced", until="ROLLED_BACK") == ["half message", "UNKNOWN op", "ROLLBACK op", "ROLLED_BACK"]
    rows = ledger.transaction(coordinator.spark, coordinator.config.warehouse, sent["forced"]).collect()
    assert rows[2]["detail"] == "by an administrator, customer called"
    assert rows[3]["detail"].startswith("reason ADMIN")


def test_an_unknown_transaction_id_is_an_error_and_nothing_is_sent(coordinator: Coordinator) -> None:
    with pytest.raises(TransactionNotFoundError, match="no first half message with the transaction id 'nobody'"):
        admin.first_half_message(coordinator.spark, coordinator.config.warehouse, "nobody")
    assert command(coordinator, "ledger", "nobody") == 1


@pytest.mark.usefixtures("decided")
def test_the_summary_counts_every_kind_once_and_its_counts_agree(
    coordinator: Coordinator, sent: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def row() -> dict[str, Any]:
        found = ledger.summary(coordinator.spark, coordinator.config.warehouse).where(f"topic = '{TOPIC}'")
        return found.collect()[0].asDict()

    expected = {
        "normal": 1, "half": 8, "committed": 4, "rolled_back": 2, "discarded": 1, "pending": 1,
        "delayed": 2, "delivered": 2, "recalled": 0, "duplicates": 0, "waiting": 2, "visible": 5, "holds": True,
    }  # fmt: skip
    wait_for(lambda: row() == {"topic": TOPIC, **expected})
    capsys.readouterr()
    assert command(coordinator, "ledger", "--summary") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert dict(zip(lines[0], next(line for line in lines if line[0] == TOPIC), strict=True)) == {
        "topic": TOPIC, **{name: str(value) for name, value in expected.items()},
    }  # fmt: skip


def test_discarded_transactions_are_resumed_by_hundreds_and_say_who_and_why(
    coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka, warehouse = coordinator.config.kafka, coordinator.config.warehouse
    where: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix}
    producer = TransactionMQProducer("bulk", Listener(check=UNKNOW), **where)
    with producer:
        for number in range(150):
            producer.send_message_in_transaction(
                Message("bulk", b"", keys=f"b{number}", check_immunity_seconds=3_600), UNKNOW
            )
    common = (
        *("--group=bulk", f"--set=warehouse={warehouse}", f"--set=kafka.topic_prefix={kafka.topic_prefix}"),
        *(f"--set=kafka.bootstrap_servers={kafka.bootstrap_servers}", "--as=ada", "--remark=the database is back"),
    )

    def states() -> Counter[str]:
        with opened(warehouse) as tables:
            rows = found(tables, Wanted(group="bulk"), now_ms())
        return Counter(rows["state"].to_pylist())

    wait_for(lambda: states() == {"PENDING": 150})
    assert tx("commit", "--keys=b7", "--dry-run", *common) == 0
    assert "COMMIT of 1 transaction:" in capsys.readouterr().out
    assert states() == {"PENDING": 150}
    assert tx("rollback", "--where", "keys LIKE 'b1%'", "--rate=500", "--yes", *common) == 0
    assert "sent 61 decisions" in capsys.readouterr().out
    wait_for(lambda: states() == {"PENDING": 89, "ROLLED_BACK": 61})
    assert tx("rollback", "--where", "keys LIKE 'b1%'", "--yes", *common) == 3, "what has ended does not fit any more"
    assert tx("commit", "--older-than=1ms", "--yes", *common) == 0
    wait_for(lambda: states() == {"COMMITTED": 89, "ROLLED_BACK": 61})
    remarks = {row["remark"] for row in rows(warehouse, "op") if row["admin"] and row["transaction_id"]}
    assert "the database is back (by ada)" in remarks


def tx(*words: str) -> int:
    """The exit code of a `tx` command."""
    try:
        app.app(["tx", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def ask(lake: Lake, *words: str) -> tuple[int, list[Any], str]:
    sets = [f"--set={key}={value}" for key, value in lake.settings.items() if key.startswith(("kafka.", "warehouse"))]
    done = CliRunner().invoke(app.app, [*words, *sets])
    lines = done.output.splitlines()
    return done.exit_code, [json.loads(line) for line in lines if line.startswith("{")], done.output


def test_a_message_in_place_of_a_delayed_one_is_shown_once(spark: SparkSession, lake: Lake) -> None:
    dedup = {"topics.dedup": {"reminders": {"window": "1d"}}}
    with (
        commitlake.start(spark, {**lake.settings, **dedup}),
        DefaultMQProducer(
            "g",
            bootstrap_servers=str(lake.settings["kafka.bootstrap_servers"]),
            topic_prefix=lake.config.kafka.topic_prefix,
        ) as producer,
    ):
        first = producer.send(Message("reminders", "in an hour", keys="A", delay_seconds=3_600))
        with pytest.raises(ProducerError, match="what is to be replaced is in reminders; nothing was sent"):
            producer.reschedule(str(first.recall_handle), Message("others", "", keys="A"))
        producer.reschedule(str(first.recall_handle), Message("reminders", "soon", keys="A", delay_milliseconds=1))
        late = producer.send(Message("reminders", "at once", keys="B", delay_milliseconds=1))
        wait_for(lambda: bodies(lake) == [b"at once", b"soon"])
        producer.reschedule(str(late.recall_handle), Message("reminders", "too late", keys="B", delay_milliseconds=1))
        wait_for(lambda: len(lake.rows("deliveries")) == 4 and lake.rows("rejected"))
    states = Counter(row["state"] for row in lake.rows("deliveries"))
    assert states == {"DELIVERED": 2, "RECALLED": 1, "DUPLICATE": 1}
    assert [row["reason"] for row in lake.rows("rejected")] == ["RECALL_TOO_LATE"]
    assert bodies(lake) == [b"at once", b"soon"]


def bodies(lake: Lake) -> list[bytes]:
    return sorted(row["body"] for row in lake.topic("reminders"))


def test_a_key_finds_and_recalls_what_is_waiting(spark: SparkSession, lake: Lake) -> None:
    due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
    with commitlake.start(spark, lake.settings):
        place = lake.message("one", topic="reminders", keys="order-17 mail", delays=due)
        lake.message("two", topic="reminders", keys="order-17", delays=due)
        lake.message("three", topic="reminders", keys="order-18", delays=due)
        lake.message("four", topic="others", keys="order-17", delays=due)
        lake.message("soon", topic="reminders", keys="order-17", delays={"TIMER_DELAY_MS": "1"})
        wait_for(lambda: len(lake.rows("deliveries")) == 1)
        code, rows, _ = ask(lake, "delayed", "--topic=reminders", "--keys=order-17", "--json")
        assert (code, sorted(row["message_id"] for row in rows)) == (0, ["one", "two"])
        found = {row["message_id"]: row for row in commitlake.delayed(lake.settings)}
        assert sorted(found) == ["four", "one", "three", "two"]
        handle = decode_handle(found["one"]["recall_handle"])
        assert (handle.msg_id, handle.topic, handle.message) == ("one", "reminders", place)

        assert ask(lake, "recall", "reminders", "--keys=order-19")[0] == 3
        code, _, told = ask(lake, "recall", "reminders", "--keys=order-17", "--dry-run")
        assert (code, "are sent" in told) == (0, False)
        code, _, told = ask(lake, "recall", "reminders", "--keys=order-17", "--yes")
        assert (code, told.splitlines()[-1].split(";")[0]) == (0, "sent 2 recalls")
        wait_until_equal(
            lambda: sorted((row["message_id"], row["state"]) for row in lake.rows("deliveries")),
            [("one", "RECALLED"), ("soon", "DELIVERED"), ("two", "RECALLED")],
        )
        wait_until_equal(
            lambda: sorted(row["message_id"] for row in commitlake.delayed(lake.settings)), ["four", "three"]
        )
    assert lake.rows("rejected") == []


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
