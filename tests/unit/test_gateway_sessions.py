"""What one client's stream may hold, and what its settings may say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.awaited import awaited
from tests.support.gateway_in_memory import CLIENT, Kafka, code

from commitlake.clients.gateway.access import Caller
from commitlake.clients.gateway.sessions import MOST_TOPICS, MOST_UNSENT, MOST_UNSENT_BYTES, Session
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import services as s


def _command(size: int = 0) -> Any:
    return s.TelemetryCommand(status=d.Status(code=d.OK, message="x" * size))


@awaited
async def test_what_a_client_does_not_read_is_bounded_by_number_and_bytes() -> None:
    session = Session(Caller("a", None))
    assert [session.ask(_command()) for _ in range(MOST_UNSENT + 1)] == [True] * MOST_UNSENT + [False]
    large = Session(Caller("b", None))
    assert [large.ask(_command(MOST_UNSENT_BYTES)) for _ in range(2)] == [True, False]
    assert not large.ask(_command())


@awaited
async def test_what_is_read_makes_room() -> None:
    session = Session(Caller("a", None))
    for _ in range(2):
        assert session.ask(_command(MOST_UNSENT_BYTES))
        assert (await anext(session.commands())).HasField("status")


def test_the_stream_of_one_that_asks_and_does_not_read_ends() -> None:
    async def work() -> list[Any]:
        session = Session(Caller("a", None))
        for _ in range(MOST_UNSENT + 1):
            session.tell(_command())
        return [command async for command in session.commands()]

    assert asyncio.run(asyncio.wait_for(work(), 10)) == []


def _settled(**publishing: Any) -> Any:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        await stream.write(s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=publishing)))
        return await stream.read()

    return Kafka().serve(work)


def test_settings_are_not_echoed() -> None:
    answer = _settled(topics=[d.Resource(name=f"t{number}") for number in range(5_000)])
    assert (code(answer), answer.settings.client_type, len(answer.settings.publishing.topics)) == ("OK", d.PRODUCER, 0)
    assert answer.ByteSize() < 200


@pytest.mark.parametrize("name", ["a b", "", "x" * 300])
def test_a_topic_without_a_legal_name_is_refused(name: str) -> None:
    assert code(_settled(topics=[d.Resource(name=name)])) == "ILLEGAL_TOPIC"


def test_a_client_is_asked_for_a_bounded_number_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> list[str]:
        given = [d.Resource(name=f"t{number}") for number in range(MOST_TOPICS + 1)]
        return Session(Caller("a", None)).set_topics(given)

    assert len(asyncio.run(work())) == MOST_TOPICS
    assert "only the first 100" in caplog.text
