"""Who may call the gateway, where it listens, whom it asks for a transaction, and what silence means."""

from __future__ import annotations

import asyncio
import hmac
import importlib.util
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.gateway import CLIENT, Kafka, certified, code, message
from tests.support.polling import awaited
from typer.testing import CliRunner

from commitlake.clients.gateway import checks as module
from commitlake.clients.gateway import server
from commitlake.clients.gateway.access import Caller, parse_keys
from commitlake.clients.gateway.checks import Checks
from commitlake.clients.gateway.messages import TransactionHandle
from commitlake.clients.gateway.producers import Producers
from commitlake.clients.gateway.server import Entrance, listening
from commitlake.clients.gateway.sessions import Session
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import servicers
from commitlake.clients.gateway.stubs import services as s
from commitlake.clients.producer.check_reader import Calls, CheckAnswerer
from commitlake.errors import ConfigError, UncertainSendError
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import CheckRecord, OpRecord
from commitlake.testing import Fault
from commitlake.testing.codecs import decode_op
from commitlake.tools.cli import app


def signed(key: str = "shop", secret: str = "s3cret", when: str = "20260101T000000Z", form: str = "{key}") -> Any:
    signature = hmac.new(secret.encode(), when.encode(), "sha1").hexdigest().upper()
    credential = form.format(key=key)
    text = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (*CLIENT, ("x-mq-date-time", when), ("authorization", text))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (signed(), "OK"),
        (signed(form="{key}/region/service"), "OK"),
        (signed(secret="wrong"), "UNAUTHORIZED"),
        (signed(key="nobody"), "UNAUTHORIZED"),
        ((*CLIENT, ("authorization", "Basic eDp5")), "UNAUTHORIZED"),
        (CLIENT, "UNAUTHORIZED"),
        (signed()[1:], "CLIENT_ID_REQUIRED"),
    ],
)
def test_access_keys_let_in_who_signs(metadata: Any, expected: str) -> None:
    kafka, keys = Kafka(), {"shop": "s3cret"}
    response = kafka.send(message(), metadata=metadata, access_keys=keys)
    assert (code(response), "s3cret" in response.status.message) == (expected, False)
    assert len(kafka.coordinator.messages("orders")) == (expected == "OK")


def test_a_stream_needs_a_signature_too() -> None:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        return [await stream.read(), await stream.read()]

    refused, after = Kafka().serve(work, access_keys={"shop": "s3cret"})
    assert (code(refused), after) == ("UNAUTHORIZED", grpc.aio.EOF)


@pytest.mark.parametrize(
    "text", ["", "- a", "shop", "shop: [12]", "shop: a\nshop: b", "007: a", "a: b\nc:", "a: [", "{shop: s3cret"]
)
def test_what_are_no_access_keys_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError, match="--access-keys") as error:
        parse_keys(text)
    assert "s3cret" not in str(error.value)


def test_access_keys_are_lines() -> None:
    assert parse_keys("shop: s3cret\n'12': '34'\n17: 034") == {"shop": "s3cret", "12": "34", "17": "034"}


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "0.0.0.0:8081"},
        {"listen": "shop.example:8081"},
        {"listen": "[::]:8081"},
        {"listen": "8081"},
        {"listen": "127.0.0.1:65536"},
        {"listen": "127.0.0.1:8081", "certificate": Path("a.pem")},
        {"listen": "0.0.0.0:8081", "certificate": Path("a.pem"), "private_key": Path("a.key")},
    ],
    ids=str,
)
def test_an_open_door_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Entrance(**given)


@pytest.mark.parametrize("listen", ["127.0.0.1:8081", "localhost:0", "[::1]:8081"])
def test_this_machine_may_call_without_a_key(listen: str) -> None:
    assert Entrance(listen=listen).access_keys == {}


def test_a_key_opens_the_door_to_the_network() -> None:
    assert "s3cret" not in repr(Entrance(listen="0.0.0.0:8081", access_keys={"shop": "s3cret"}))


def test_a_port_that_is_taken_is_said() -> None:
    kafka = Kafka()

    async def twice() -> None:
        async with (
            listening(kafka.link, kafka.coordinator.config, Entrance(listen="127.0.0.1:0")) as port,
            listening(kafka.link, kafka.coordinator.config, Entrance(listen=f"127.0.0.1:{port}")),
        ):
            pass

    with pytest.raises(ConfigError, match=r": Address already in use; choose another host or port$"):
        asyncio.run(twice())


@pytest.mark.parametrize("listen", ["no-such-host.invalid:8081", "203.0.113.1:8081"])
def test_an_address_that_is_not_of_this_machine_is_said_in_words_of_the_system(listen: str) -> None:
    async def work() -> None:
        Entrance(listen=listen, access_keys={"key": "secret"}).open(grpc.aio.server())

    with pytest.raises(ConfigError, match=r"choose another host or port$") as caught:
        asyncio.run(work())
    assert "GRPC_VERBOSITY" not in str(caught.value)


def test_tls(tmp_path: Path) -> None:
    certificate, key = (Path(option.partition("=")[2]) for option in certified(tmp_path))
    kafka = Kafka()

    async def work() -> Any:
        entrance = Entrance(listen="127.0.0.1:0", certificate=certificate, private_key=key)
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        async with (
            listening(kafka.link, kafka.coordinator.config, entrance) as port,
            grpc.aio.secure_channel(f"localhost:{port}", trusted) as channel,
        ):
            stub = servicers.MessagingServiceStub(channel)
            return await stub.SendMessage(s.SendMessageRequest(messages=[message()]), metadata=CLIENT)

    assert code(asyncio.run(asyncio.wait_for(work(), 30))) == "OK"
    key.write_text("no key")
    with pytest.raises(ConfigError, match=r"cannot listen on .*; check the TLS files$"):
        asyncio.run(asyncio.wait_for(work(), 30))


def run_command(*words: str) -> None:
    line = ["gateway", "--listen=127.0.0.1:0", "--set=kafka.bootstrap_servers=127.0.0.1:1", *words]
    CliRunner().invoke(app.app, line, catch_exceptions=False)


def test_the_command_takes_no_keys_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="only says where") as error:
        run_command("--access-keys=shop: s3cret")
    assert "s3cret" not in str(error.value)
    monkeypatch.setenv("NO_KEYS", "s3cret")
    with pytest.raises(ConfigError, match="not a list of keys"):
        run_command("--access-keys=env:NO_KEYS")


@pytest.mark.parametrize(("is_there", "engine"), [(True, "confluent"), (False, "kafka-python")])
def test_librdkafka_sends_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, is_there: bool, engine: str) -> None:
    began: list[str] = []
    find = importlib.util.find_spec

    def found(name: str) -> object:
        return is_there or None if name == "confluent_kafka" else find(name)

    async def serve(settings: Any, entrance: Any, engine: str, fifo: Any) -> None:
        began.append(engine)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(server, "serve", serve)
    run_command()
    run_command("--engine=kafka-python")
    assert began == [engine, "kafka-python"]


async def _raw(body: bytes, name: str = "SendMessage") -> Any:
    """The answer to bytes that need not be a request, of a caller without a key."""
    kafka = Kafka()
    entrance = Entrance(listen="127.0.0.1:0", access_keys={"shop": "s3cret"})
    async with (
        listening(kafka.link, kafka.coordinator.config, entrance) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{name}", request_serializer=bytes)
        return await call(body, metadata=CLIENT, timeout=20)


@pytest.mark.parametrize("body", [b"\xff no request", b"x" * 20_000_000], ids=["broken", "too large"])
def test_who_may_not_call_is_refused_before_the_body_is_read(body: bytes) -> None:
    answer = s.SendMessageResponse.FromString(asyncio.run(_raw(body)))
    assert code(answer) == "UNAUTHORIZED"


def test_a_client_id_belongs_to_the_key_of_its_session() -> None:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=signed())
        await stream.write(s.TelemetryCommand(settings=d.Settings(publishing={})))
        await stream.read()
        other = signed("bank", "b4nk")
        ended = await stub.NotifyClientTermination(s.NotifyClientTerminationRequest(), metadata=other)
        second = await stub.Telemetry(metadata=other).read()
        own = await stub.Heartbeat(s.HeartbeatRequest(), metadata=signed())
        await stream.done_writing()
        assert await stream.read() == grpc.aio.EOF
        after = await stub.Heartbeat(s.HeartbeatRequest(), metadata=other)
        return [code(each) for each in (ended, second, own, after)]

    answers = Kafka().serve(work, access_keys={"shop": "s3cret", "bank": "b4nk"})
    assert answers == ["FORBIDDEN", "FORBIDDEN", "OK", "OK"]


class Asked:
    """Checks of a group, its producers, and what becomes of a question; nobody reads checks from Kafka."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer_s: float = 0.2) -> None:
        monkeypatch.setattr(CheckAnswerer, "start", lambda reader: None)
        monkeypatch.setattr(CheckAnswerer, "stop", lambda reader, until: None)
        self.kafka = Kafka()
        self.checks = Checks(self.kafka.link, Producers(self.kafka.link), answer_s)
        self.told: list[tuple[str, Any]] = []
        self.outcomes: list[BaseException | None] = []

    def connect(self, name: str, *, has_checker: bool = False) -> Session:
        session = Session(Caller(name, None))
        session.has_checker = has_checker
        session.ask = lambda command: not self.told.append((name, command))  # type: ignore[func-returns-value, method-assign]
        self.checks.join(session, "orders")
        return session

    async def ask(self) -> None:
        await self.checks._answer(CHECK, Calls(30), self.outcomes.append)

    def ops(self) -> list[tuple[str, str | None]]:
        records = [record for topic, _, _, record in self.kafka.coordinator._unread if topic == "op"]
        ops = [decode_op(record.value) for record in records]
        return [(op.decision, op.check_id) for op in ops if isinstance(op, OpRecord)]


CHECK = CheckRecord(
    transaction_id="T", producer_group="orders", msg_id="M", topic="orders", body=b"", half=Position(0, 5),
    half_messages=(Position(0, 5),), check_times=1, check_id="0-5-0-1",
)  # fmt: skip


@pytest.mark.parametrize(("has_checker", "ops"), [(True, [("UNKNOWN", "0-5-0-1")]), (False, [])])
@awaited
async def test_silence_says_unknown_only_of_a_producer_that_has_a_checker(
    monkeypatch: pytest.MonkeyPatch, has_checker: bool, ops: list[tuple[str, str]]
) -> None:
    asked = Asked(monkeypatch)
    asked.connect("a", has_checker=has_checker)
    await asked.ask()
    assert (asked.ops(), asked.outcomes, len(asked.told)) == (ops, [None], 1)


@awaited
async def test_a_producer_that_got_no_thread_for_checks_gets_one_with_its_next_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, begun = Asked(monkeypatch), list[CheckAnswerer]()

    def start(reader: CheckAnswerer) -> None:
        begun.append(reader)
        if len(begun) == 1:
            msg = "can't start new thread"  # what CPython raises
            raise RuntimeError(msg)

    monkeypatch.setattr(CheckAnswerer, "start", start)
    session = asked.connect("a")
    assert "can't start new thread" in caplog.text
    for _ in range(2):
        asked.checks.join(session, "orders")
    await asked.ask()
    assert (len(begun), len(asked.told), session.groups) == (2, 1, 1)


@awaited
async def test_an_unknown_that_kafka_does_not_take_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    asked.connect("a", has_checker=True)
    asked.kafka.engine.fault = Fault.DECISION_LOST
    await asked.ask()
    assert [type(error) for error in asked.outcomes] == [UncertainSendError]


@awaited
async def test_who_has_a_checker_is_asked_first_and_the_others_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    for name in "abcd":
        asked.connect(name, has_checker=name == "c")
    await asked.ask()
    assert asked.told[0][0] == "c"
    assert len({name for name, _ in asked.told}) == 3


@awaited
async def test_an_answer_ends_the_question_and_one_that_came_twice_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch, answer_s=30)
    asked.connect("a")
    first = asyncio.create_task(asked.ask())
    await asyncio.sleep(0)
    await asked.ask()
    assert asked.outcomes == []
    (command,) = [command for _, command in asked.told]
    handle = command.recover_orphaned_transaction_command.transaction_id
    asked.checks.answered(TransactionHandle.parse(handle))
    await asyncio.wait_for(first, 5)
    assert (asked.outcomes, asked.ops()) == ([None, None], [])


@awaited
async def test_when_a_producer_goes_another_is_asked_and_then_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, answer_s=30)
    sessions = {name: asked.connect(name) for name in "ab"}
    question = asyncio.create_task(asked.ask())
    for _ in sessions:
        await asyncio.sleep(0.05)
        asked.checks.leave(sessions[asked.told[-1][0]])
    await asyncio.wait_for(question, 5)
    assert {name for name, _ in asked.told} == {"a", "b"}
    assert (asked.outcomes, asked.ops()) == ([None], [])
    await asked.checks.close()


@awaited
async def test_who_does_not_read_is_passed_over_and_its_silence_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    slow = asked.connect("slow", has_checker=True)
    slow.ask = lambda command: False  # type: ignore[method-assign]
    await asked.ask()
    assert (asked.ops(), asked.outcomes) == ([], [None])
    asked.connect("b")
    await asked.ask()
    assert [name for name, _ in asked.told] == ["b"]


@awaited
async def test_one_client_does_not_take_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    monkeypatch.setattr(module, "MOST_OF_SESSION", 3)
    first, other = asked.connect("a"), asked.connect("b")
    for _ in range(2):  # to be there already takes no place
        for number in range(5):
            asked.checks.join(first, f"group-{number}")
    asked.checks.join(other, "group-4")
    assert set(asked.checks._groups) == {"orders", "group-0", "group-1", "group-4"}
