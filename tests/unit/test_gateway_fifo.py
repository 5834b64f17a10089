"""FIFO consumer groups of a gateway: the next message of a message group comes when the one before is finished."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import (
    CLIENT,
    ConsumerCalls,
    Kafka,
    attempt,
    calls,
    code,
    failing_receipts,
    ids,
    outcomes,
)
from tests.support.polling import awaited
from tests.support.topic_table import message, write

from commitlake.clients.gateway import consumers, deliveries, reader
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import services as s

FIFO = ("poi*",)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Two message groups, each in a queue of its own, of three messages each; and a message without a group."""
    place = tmp_path / "warehouse"
    rows = [message(n, queue=n % 2, sharding_key=b"a" if n % 2 else b"b") for n in range(6)]
    write(place, "orders", [*rows, message(6)])
    return place


def names(messages: list[Any]) -> list[str]:
    return sorted(map(ids, messages))


@awaited
async def test_the_next_one_comes_when_the_one_before_is_acknowledged(warehouse: Path) -> None:
    async with calls(warehouse, FIFO) as client:
        first = await client.receive_all(3)
        assert names(first) == ["m0", "m1", "m6"]
        assert await client.receive(wait_s=1) == []
        waiting = asyncio.create_task(client.receive(wait_s=20))
        await asyncio.sleep(0.3)
        await client.ack(*[each for each in first if ids(each) == "m1"])
        assert names(await waiting) == ["m3"]
        other = ConsumerCalls(client.stub, (("x-mq-client-id", "client-2"),))
        await client.ack(*[each for each in first if ids(each) == "m0"])
        assert names(await other.receive_all(1)) == ["m2"], "also another client gets it only then"


@awaited
async def test_a_group_that_is_not_named_has_no_order(warehouse: Path) -> None:
    async with calls(warehouse, FIFO, group="logistics") as client:
        assert len(await client.receive_all(7)) == 7


@pytest.mark.parametrize(("group", "is_fifo"), [("points", True), ("logistics", False)])
def test_the_settings_of_a_group_say_whether_it_is_fifo(group: str, is_fifo: bool) -> None:
    async def work(stub: Any) -> Any:
        stream = stub.Telemetry(metadata=CLIENT)
        given = d.Settings(client_type=d.PUSH_CONSUMER, subscription={"group": {"name": group}})
        await stream.write(s.TelemetryCommand(settings=given))
        return await stream.read()

    answer = Kafka().serve(work, fifo=FIFO)
    assert (code(answer), answer.settings.subscription.fifo) == ("OK", is_fifo)


@awaited
async def test_what_is_not_acknowledged_comes_again_before_all_behind_it_until_it_is_a_dead_letter(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MOST_ATTEMPTS", 2)
    async with calls(warehouse, FIFO) as client:
        await client.ack(*[each for each in await client.receive_all(3, hidden_s=0.5) if ids(each) != "m0"])
        seen: list[tuple[str, int]] = []
        while ("m2", 1) not in seen:
            got = await client.receive(hidden_s=0.5)
            seen += [(ids(each), attempt(each)) for each in got if ids(each) in ("m0", "m2")]
            await client.ack(*[each for each in got if ids(each) in ("m3", "m5")])
    assert seen == [("m0", 2), ("m2", 1)], "the first attempt of m0 was before"
    assert ("m0", "DEAD", 1) in outcomes(warehouse)


@awaited
async def test_a_push_consumer_gets_what_it_could_not_consume_again_after_the_pause_and_nothing_behind_it(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "PAUSES", ("1s", "2s"))
    async with calls(warehouse, FIFO) as client:
        got = await client.receive_all(3, hidden_s=None)
        failed = next(each for each in got if ids(each) == "m0")
        assert (await client.change(failed, 0))[0] == "OK"
        assert await client.receive(wait_s=0.5, hidden_s=None) == []
        (again,) = await client.receive(hidden_s=None)
        assert (ids(again), attempt(again)) == ("m0", 2)
        assert await client.give_up(again) == "OK"
        assert names(await client.receive(hidden_s=None)) == ["m2"]


@pytest.mark.parametrize("waits", [False, True])
@awaited
async def test_another_gateway_begins_with_the_first_one_that_is_not_acknowledged(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """No receipt says that it comes again later: those behind it would pass."""
    monkeypatch.setattr(consumers, "LEASE", "3s")
    async with calls(warehouse, FIFO) as second:
        async with calls(warehouse, FIFO) as client:
            got = await client.receive_all(3, hidden_s=0.5 if waits else 60)
            await client.ack(*[each for each in got if ids(each) == "m1"])
            if waits:  # m0 for its next attempt
                monkeypatch.setattr(deliveries, "AT_ONCE_S", 60.0)
                await asyncio.sleep(1)
        order: list[str] = []
        while len({*order} & {"m0", "m2", "m4"}) < 3:
            some = await second.receive()
            order += map(ids, some)
            await second.ack(*some)
    assert [each for each in dict.fromkeys(order) if each in ("m0", "m2", "m4")] == ["m0", "m2", "m4"]
    assert [each for each in dict.fromkeys(order) if each in ("m3", "m5")] == ["m3", "m5"]


@awaited
async def test_what_waits_for_its_next_attempt_does_not_keep_its_queue(tmp_path: Path) -> None:
    """Nor does what is behind it: an hour may pass."""
    write(tmp_path / "w", "orders", [message(n, queue=n % 2, sharding_key=b"%d" % (n % 2)) for n in range(4)])
    async with calls(tmp_path / "w", FIFO) as first:
        for each in await first.receive_all(2, hidden_s=None):
            await first.change(each, 3_600)
        async with calls(tmp_path / "w", FIFO) as second:
            (again,) = await second.receive(wait_s=20)
            assert (ids(again) in ("m0", "m1"), attempt(again)) == (True, 1)
            await second.ack(again)
            assert names(await second.receive()) == [f"m{int(ids(again)[1:]) + 2}"]


@awaited
async def test_nothing_passes_a_dead_letter_that_can_not_be_noted(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its reader has not yet noticed that the group's tables fail."""
    monkeypatch.setattr(deliveries, "MOST_ATTEMPTS", 1)
    monkeypatch.setattr(reader, "AHEAD", 1)
    monkeypatch.setattr(reader, "_CHECK_S", 30.0)
    write(warehouse, "orders", [message(n) for n in range(7, 12)])
    async with calls(warehouse, FIFO) as client:
        got = {ids(each): each for each in await client.receive_all(3, hidden_s=4)}
        with failing_receipts():
            await client.ack(got["m6"])
            await asyncio.sleep(2)
            assert await client.give_up(got["m0"]) == "INVALID_RECEIPT_HANDLE"
            await asyncio.sleep(2.5)  # m1 had its last attempt
            behind = names(await client.receive(wait_s=1))
            assert "m7" in behind and not {"m2", "m3"} & {*behind}


@awaited
async def test_a_pause_keeps_nothing_in_memory_when_nobody_asks_any_more(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another instance gives the message out before; its window of messages has some MiB."""
    monkeypatch.setattr(consumers, "IDLE_S", 0.5)
    async with calls(warehouse, FIFO) as client:
        for each in await client.receive_all(3, hidden_s=None):
            assert (await client.change(each, 3_600))[0] == "OK"
        while any(isinstance(each, reader.Reader) for each in gc.get_objects()):
            await asyncio.sleep(0.5)
            gc.collect()


@awaited
async def test_two_gateways_give_one_message_of_a_group_at_a_time(tmp_path: Path) -> None:
    """Also while queues change hands."""
    write(tmp_path / "w", "orders", [message(n, queue=n % 4, sharding_key=b"%d" % (n % 8)) for n in range(160)])
    seen, out = list[int](), list[int]()

    async def consume(client: ConsumerCalls) -> None:
        while len({*seen}) < 160:
            got = await client.receive(wait_s=1)
            numbers = [int(ids(each)[1:]) for each in got]
            out.extend(number % 8 for number in numbers)
            assert len(out) == len({*out})
            seen.extend(numbers)
            await asyncio.sleep(0.02)
            for number in numbers:
                out.remove(number % 8)
            await client.ack(*got)

    async with calls(tmp_path / "w", FIFO) as first:
        one = asyncio.create_task(consume(first))
        await asyncio.sleep(0.3)
        async with calls(tmp_path / "w", FIFO) as second:
            await asyncio.gather(one, consume(second))
    for group in range(8):
        once = [n for n in dict.fromkeys(seen) if n % 8 == group]
        assert once == sorted(once), group
