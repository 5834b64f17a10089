"""`run`: a handler in threads, with retries after growing pauses, dead letters, and the order of keys."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import awaited, wait_for
from tests.support.topic_table import consumer, message, rest, write

import commitlake
from commitlake.clients.consumer import runner
from commitlake.clients.consumer.receipts import Receipts
from commitlake.clients.consumer.runner import Runner
from commitlake.clients.consumer.unfinished import unfinished
from commitlake.config import from_mapping
from commitlake.errors import ArgumentError
from commitlake.spark.process import Stop


def left(place: Path) -> list[tuple[str, str, int, str]]:
    found = unfinished(from_mapping({"warehouse": str(place)}), "orders", "points").to_pylist()
    return [(row["message_id"], row["state"], row["attempts"], row["remark"]) for row in found]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_handler_gets_all_messages_and_a_run_ends_after_the_last_is_done(tmp_path: Path, threads: int) -> None:
    sent, found = numbers(tmp_path), list[str]()

    def handle(each: Any) -> None:
        time.sleep(0.05)
        found.append(each.message_id)

    consumer(tmp_path, follow=False).run(handle, threads=threads)
    assert sorted(found) == sent
    assert left(tmp_path) == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_signal_during_the_last_calls_lets_them_end(tmp_path: Path, is_begun: bool) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(3)])
    heard: list[int] = []

    def handle(each: Any) -> None:
        if each.message_id == "m2":
            time.sleep(1)  # until the messages are at their end
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        messages = consumer(tmp_path, follow=False)
        if is_begun:
            next(messages).done()
        messages.run(handle)
        assert heard == []
        assert left(tmp_path) == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM], "as before the run"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_exception_is_a_retry_after_growing_pauses_and_at_last_a_dead_letter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(3)])
    calls: list[tuple[str, int, float]] = []
    messages = consumer(tmp_path)

    def handle(each: Any) -> None:
        calls.append((each.message_id, each.attempt, time.monotonic()))
        if each.message_id == "m1":
            if each.attempt == 3:
                messages.stop()
            raise ValueError("no such customer")

    messages.run(handle, max_attempts=3, pauses=("100ms", "2s"))
    times = [at for name, _, at in calls if name == "m1"]
    assert [attempt for name, attempt, _ in calls if name == "m1"] == [1, 2, 3]
    assert times[2] - times[1] >= 2 > times[1] - times[0]
    assert left(tmp_path) == [("m1", "DEAD", 3, "ValueError: no such customer")]
    told = r"message \S+ of orders, keys \S+, is a dead letter after attempt 3: ValueError: no such customer"
    assert [bool(re.fullmatch(told, each)) for each in caplog.messages].count(True) == 1


def test_a_handler_may_finish_a_message_itself(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(2)])
    consumer(tmp_path, follow=False).run(
        lambda each: each.retry("1h", remark="later") if each.message_id == "m0" else None
    )
    assert left(tmp_path) == [("m0", "RETRY", 1, "later")]


def test_what_is_no_exception_ends_the_run_and_its_message_comes_again(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(2)])

    def handle(each: Any) -> None:
        if each.message_id == "m1":
            raise SystemExit(7)

    with pytest.raises(SystemExit):
        consumer(tmp_path).run(handle)
    assert [(name, state) for name, state, *_ in left(tmp_path)] == [("m1", "OPEN")]


class WordlessError(Exception):
    """Its text names what is not there."""

    def __str__(self) -> str:
        raise KeyError("field")


def raises(error: Exception) -> Any:
    def handle(each: Any) -> None:
        raise error

    return handle


async def raises_in_a_coroutine(each: Any) -> None:
    await asyncio.sleep(0)
    raise ValueError("no such customer")


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        (raises(ValueError("unknown \ud800")), "ValueError: unknown ?"),
        (raises(WordlessError()), "WordlessError"),
        (raises_in_a_coroutine, "ValueError: no such customer"),
        (lambda each: each.retry(max_attempts=1, remark=ValueError("gone")), "gone"),
    ],
)
def test_whatever_an_exception_says_is_a_remark(tmp_path: Path, handle: Any, remark: str) -> None:
    write(tmp_path, "orders", [message(0, batch=0)])
    consumer(tmp_path, follow=False).run(handle, max_attempts=1)
    assert left(tmp_path) == [("m0", "DEAD", 1, remark)]


def test_a_long_line_behind_a_message_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "_LONG_LINE", 10)
    write(tmp_path, "orders", [message(n, batch=0, keys="one") for n in range(12)])
    messages = consumer(tmp_path)

    def handle(each: Any) -> None:
        raise ValueError

    thread = threading.Thread(target=messages.run, args=[handle], kwargs={"ordered": True, "pauses": ("1h",)})
    thread.start()
    wait_for(lambda: "11 messages wait" in caplog.text)
    messages.stop()
    thread.join(30)
    assert "wait behind <ReceivedMessage orders half-0-0-0 attempt=1>" in caplog.text


class KeyedMessage:
    """A message of a key, whose queue this instance keeps or not."""

    sharding_key, topic, finished = None, "orders", False

    def __init__(self, name: str, *, is_due_elsewhere: bool) -> None:
        self.message_id, self.keys, self._is_due_elsewhere = name, "key", is_due_elsewhere

    def release(self) -> bool:
        return self._is_due_elsewhere

    def done(self) -> None:
        self.finished = True


def test_of_a_key_in_two_queues_only_what_goes_elsewhere_is_let_go(tmp_path: Path) -> None:
    failing, staying = KeyedMessage("goes", is_due_elsewhere=True), KeyedMessage("stays", is_due_elsewhere=False)
    begun, stop = threading.Event(), Stop()

    def handle(each: Any) -> None:
        begun.set()
        if each is failing:
            raise ValueError

    def messages() -> Any:
        yield failing
        begun.wait(10)
        yield staying
        wait_for(lambda: staying.finished)

    Runner(handle, 1, 16, ("1h",), True, stop).run(messages())
    assert staying.finished
    assert not failing.finished


@pytest.mark.parametrize(
    "arguments",
    [
        {"threads": 0},
        {"threads": True},
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"pauses": ["soon"]},
        {"pauses": []},
    ],
)
def test_arguments_of_a_run_are_checked(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="is not allowed"):
        consumer(tmp_path).run(print, **arguments)


def test_an_asyncio_consumer_is_made_of_a_consumer() -> None:
    with pytest.raises(ArgumentError, match="consumer: 'orders' is not allowed; give what"):
        commitlake.AsyncConsumer("orders")  # type: ignore[arg-type]


def test_messages_of_a_key_stay_in_order_across_retries_and_others_do_not_wait(tmp_path: Path) -> None:
    rows = [message(n, batch=n, queue=n % 3 % 2, sharding_key=f"c{n % 3}".encode()) for n in range(60)]
    write(tmp_path, "orders", rows)
    done: list[tuple[bytes, int]] = []
    tried: Counter[str] = Counter()
    at_work: Counter[bytes] = Counter()

    def handle(each: Any) -> None:
        at_work[each.sharding_key] += 1
        assert at_work[each.sharding_key] == 1
        time.sleep(0.002)
        tried[each.message_id] += 1
        at_work[each.sharding_key] -= 1
        if each.message_id in ("m3", "m9") and tried[each.message_id] < 3:
            raise OSError("try again")
        if each.message_id == "m6":
            raise ValueError("never")
        done.append((each.sharding_key, each.source_offset))
        if len(done) == 59:
            messages.stop()

    messages = consumer(tmp_path)
    messages.run(handle, threads=4, ordered=True, max_attempts=3, pauses=("500ms",))
    for key in (b"c0", b"c1", b"c2"):
        mine = [number for each, number in done if each == key]
        assert mine == sorted(mine)
    assert len(done) == 59
    assert done.index((b"c0", 3)) > done.index((b"c1", 58)), "other keys go on meanwhile"
    assert [(name, state) for name, state, *_ in left(tmp_path)] == [("m6", "DEAD")]


def test_a_line_that_waits_goes_to_an_instance_that_joins(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(n, batch=n, queue=n % 2, sharding_key=f"{n % 2}".encode()) for n in range(8)])
    found: dict[str, list[int]] = {"a": [], "b": []}
    running = {name: consumer(tmp_path) for name in found}

    def handle(name: str, each: Any) -> None:
        if name == "a" and each.source_offset in (2, 3):
            raise OSError("not here")
        found[name].append(each.source_offset)

    def run(name: str) -> None:
        running[name].run(lambda each: handle(name, each), ordered=True, pauses=("1h",))

    threads = [threading.Thread(target=run, args=[name]) for name in found]
    threads[0].start()
    wait_for(lambda: len(found["a"]) == 2)
    time.sleep(1.5)
    threads[1].start()
    wait_for(lambda: len(found["b"]) == 3, 30)
    for each in running.values():
        each.stop()
    for thread in threads:
        thread.join(30)
    first = found["b"][0]
    assert found["b"] == [first, first + 2, first + 4]
    table = Receipts(f"{tmp_path}_receipts/receipts", "points", "orders")
    assert table.waiting() == table.dead() == []


def numbers(place: Path) -> list[str]:
    write(place, "orders", [message(n, batch=0, queue=n % 4) for n in range(20)])
    return sorted(f"m{n}" for n in range(20))


class Awaited:
    """Handlers that are coroutine functions in one way or another."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.at_a_time = self.most = 0

    async def handle(self, each: Any) -> None:
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        await asyncio.sleep(0.02)
        self.at_a_time -= 1
        self.found.append(each.message_id)

    __call__ = handle

    def future(self, each: Any) -> Any:
        return self.handle(each)


@pytest.mark.parametrize("kind", ["method", "object", "partial", "future"])
def test_a_handler_that_is_a_coroutine_function_is_awaited(tmp_path: Path, kind: str) -> None:
    sent, own = numbers(tmp_path), Awaited()
    handler = {"method": own.handle, "object": own, "partial": partial(Awaited.handle, own), "future": own.future}
    consumer(tmp_path, follow=False).run(handler[kind], threads=4)
    assert sorted(own.found) == sent
    assert own.most == 4
    assert left(tmp_path) == []


def test_what_a_handler_gives_to_a_pool_of_its_own_is_waited_for_and_may_fail(tmp_path: Path) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(4)])

    def work(each: Any) -> None:
        time.sleep(0.1)
        if each.message_id == "m2":
            raise ValueError("no such customer")

    with ThreadPoolExecutor(2) as pool:
        consumer(tmp_path, follow=False).run(lambda each: pool.submit(work, each), max_attempts=1)
    assert left(tmp_path) == [("m2", "DEAD", 1, "ValueError: no such customer")]


def generator(each: Any) -> Any:
    yield each


async def async_generator(each: Any) -> Any:
    yield each


@pytest.mark.parametrize(
    "handler",
    [generator, async_generator, partial(generator), lambda each: iter(generator(each)), None, "handle"],
)
def test_a_handler_that_would_handle_nothing_is_refused_and_no_message_is_done(tmp_path: Path, handler: Any) -> None:
    write(tmp_path, "orders", [message(n, batch=0) for n in range(5)])
    with pytest.raises(ArgumentError, match="would handle nothing"):
        consumer(tmp_path, follow=False).run(handler)
    assert len(rest(tmp_path)) == 5


def test_a_loop_of_asyncio_gets_each_message_once_also_when_it_is_cancelled_at_times(tmp_path: Path) -> None:
    sent = numbers(tmp_path)

    async def read() -> list[str]:
        found: list[str] = []
        async with commitlake.AsyncConsumer(consumer(tmp_path)) as messages:
            while len(found) < 20:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        async for each in messages:
                            found.append(each.message_id)
                            each.done()
                            await asyncio.sleep(0.005)
        return found

    assert sorted(asyncio.run(read())) == sent
    assert left(tmp_path) == []


def test_tasks_may_share_a_consumer_of_asyncio(tmp_path: Path) -> None:
    sent = numbers(tmp_path)

    async def read(messages: Any) -> list[str]:
        return [each.message_id async for each in messages if each.done() is None]

    async def share() -> list[str]:
        async with commitlake.AsyncConsumer(consumer(tmp_path, follow=False)) as messages:
            found = await asyncio.gather(*(read(messages) for _ in range(3)))
        return sorted(each for part in found for each in part)

    assert asyncio.run(share()) == sent


@awaited
async def test_a_run_of_asyncio_awaits_its_handler_on_the_same_loop(tmp_path: Path) -> None:
    sent, own = numbers(tmp_path), Awaited()
    here = asyncio.get_running_loop()

    async def handle(each: Any) -> None:
        assert asyncio.get_running_loop() is here
        await own.handle(each)

    await commitlake.AsyncConsumer(consumer(tmp_path, follow=False)).run(handle, threads=4)
    assert (sorted(own.found), own.most) == (sent, 4)
    assert left(tmp_path) == []


@awaited
async def test_a_run_of_asyncio_that_is_cancelled_waits_for_the_calls_under_way(tmp_path: Path) -> None:
    numbers(tmp_path)
    begun, ended = list[str](), list[str]()

    async def handle(each: Any) -> None:
        begun.append(each.message_id)
        await asyncio.sleep(0.5)
        ended.append(each.message_id)

    running = asyncio.create_task(commitlake.AsyncConsumer(consumer(tmp_path)).run(handle, threads=2))
    while not begun:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(begun) == sorted(ended)
    assert len(left(tmp_path)) == 20 - len(ended)
