"""Whom the gateway asks for a transaction, and what silence means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.awaited import awaited
from tests.support.gateway_in_memory import Kafka

from commitlake.clients.gateway import checks as module
from commitlake.clients.gateway.access import Caller
from commitlake.clients.gateway.checks import Checks
from commitlake.clients.gateway.messages import TransactionHandle
from commitlake.clients.gateway.producers import Producers
from commitlake.clients.gateway.sessions import Session
from commitlake.clients.producer.check_reader import Calls, CheckAnswerer
from commitlake.errors import UncertainSend
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import CheckRecord, OpRecord
from commitlake.testing import Fault
from commitlake.testing.codecs import decode_op


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
    assert [type(error) for error in asked.outcomes] == [UncertainSend]


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
