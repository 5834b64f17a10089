"""A gateway over a Kafka in memory, called by a real gRPC channel; the tables that a consumer reads are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from deltalake import DeltaTable

from commitlake.clients.consumer import clerk, group_member
from commitlake.clients.gateway.server import Entrance, listening
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import servicers
from commitlake.clients.gateway.stubs import services as s
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import MemoryEngine, MemoryLink

CLIENT = (("x-mq-client-id", "client-1"),)
Work = Callable[[Any], Awaitable[Any]]


class Kafka:
    """A coordinator in memory, and the connection that a gateway has to its Kafka."""

    def __init__(self, **conf: object) -> None:
        self.coordinator = InMemoryCoordinator({key.replace("__", "."): value for key, value in conf.items()})
        kafka = self.coordinator.config.kafka
        self.engine = MemoryEngine(kafka.topic_prefix, kafka.queues, self.coordinator.append)
        self.link = MemoryLink(kafka, self.engine, lambda: self.coordinator.settings)
        self.link.start(0)

    def serve(self, work: Work, **entrance: Any) -> Any:
        """What `work` returns of a stub of a gateway."""

        async def served() -> Any:
            async with self.stub(**entrance) as stub:
                return await work(stub)

        return asyncio.run(asyncio.wait_for(served(), 30))

    @asynccontextmanager
    async def stub(self, fifo: Sequence[str] = (), **entrance: Any) -> AsyncIterator[Any]:
        async with (
            listening(self.link, self.coordinator.config, Entrance(listen="127.0.0.1:0", **entrance), fifo) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield servicers.MessagingServiceStub(channel)

    def send(self, *messages: Any, metadata: Any = CLIENT, **entrance: Any) -> Any:
        request = s.SendMessageRequest(messages=messages)
        return self.serve(lambda stub: stub.SendMessage(request, metadata=metadata), **entrance)


def message(topic: str = "orders", body: bytes = b"body", kind: int = d.NORMAL, **own: Any) -> Any:
    properties = own.pop("properties", {})
    own = {"message_id": "01AB", "message_type": kind, **own}
    resource = d.Resource(name=topic, resource_namespace=own.pop("namespace", ""))
    return d.Message(topic=resource, body=body, user_properties=properties, system_properties=own)


def code(response: Any) -> str:
    return str(d.Code.Name(response.status.code))


async def end_of(stream: Any) -> tuple[str, str]:
    """The code of gRPC with which a stream ends, before it says anything, and the reason."""
    try:
        return "OK", str(await stream.read())
    except grpc.aio.AioRpcError as error:
        return error.code().name, str(error.details())


class ConsumerCalls:
    """What a client calls, for one topic and group.

    Args:
        stub: of a gateway.
        metadata: of each call.
        group: of consumers.
        topic: the topic.
    """

    def __init__(self, stub: Any, metadata: Any = CLIENT, group: str = "points", topic: str = "orders") -> None:
        self.stub, self.metadata = stub, metadata
        self.names = {"group": d.Resource(name=group), "topic": d.Resource(name=topic)}

    async def answers(self, most: int = 32, wait_s: float = 10, hidden_s: float | None = 60, **more: Any) -> list[Any]:
        """All that one call of `ReceiveMessage` gives; without `hidden_s` as a push consumer calls."""
        request = s.ReceiveMessageRequest(
            group=self.names["group"], message_queue=d.MessageQueue(topic=self.names["topic"], id=-1), batch_size=most,
            auto_renew=hidden_s is None, **more,
        )  # fmt: skip
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1_000))
        if hidden_s is not None:
            request.invisible_duration.FromMilliseconds(int(hidden_s * 1_000))
        return [answer async for answer in self.stub.ReceiveMessage(request, metadata=self.metadata)]

    async def receive(self, **arguments: Any) -> list[Any]:
        return [answer.message for answer in await self.answers(**arguments) if answer.HasField("message")]

    async def receive_all(self, count: int, **arguments: Any) -> list[Any]:
        """So many messages, of as many calls as that takes."""
        found: list[Any] = []
        while len(found) < count:
            found += await self.receive(most=count - len(found), **arguments)
        return found

    async def ack(self, *messages: Any) -> list[str]:
        """The codes of the whole and of each entry."""
        entries = [s.AckMessageEntry(message_id=ids(each), receipt_handle=handle(each)) for each in messages]
        answer = await self.stub.AckMessage(s.AckMessageRequest(entries=entries, **self.names), metadata=self.metadata)
        return [code(answer), *map(code, answer.entries)]

    async def change(self, message: Any, seconds: float) -> tuple[str, str]:
        """The code, and the new receipt handle."""
        request = s.ChangeInvisibleDurationRequest(receipt_handle=handle(message), **self.names)
        request.invisible_duration.FromMilliseconds(int(seconds * 1_000))
        answer = await self.stub.ChangeInvisibleDuration(request, metadata=self.metadata)
        return code(answer), answer.receipt_handle

    async def give_up(self, message: Any) -> str:
        request = s.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle(message), **self.names)
        return code(await self.stub.ForwardMessageToDeadLetterQueue(request, metadata=self.metadata))


def ids(message: Any) -> str:
    return str(message.system_properties.message_id)


def handle(message: Any) -> str:
    return str(message.system_properties.receipt_handle)


def attempt(message: Any) -> int:
    return int(message.system_properties.delivery_attempt)


@asynccontextmanager
async def calls(warehouse: Path, fifo: Sequence[str] = (), **arguments: Any) -> AsyncIterator[ConsumerCalls]:
    """Calls to a gateway of its own, which takes shorter invisible durations than RocketMQ's 10 s."""
    async with Kafka(warehouse=str(warehouse), gateway__min_invisible="1ms").stub(fifo) as stub:
        yield ConsumerCalls(stub, **arguments)


@contextmanager
def failing_receipts() -> Iterator[None]:
    """No receipt can be written within the `with` block."""

    def fail(_: object) -> NoReturn:
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        for module in (clerk, group_member):
            patch.setattr(module, "table_of", fail)
        yield


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def outcomes(warehouse: Path) -> list[tuple[str, str, int]]:
    """Receipts: message id, state, attempt."""
    rows: Sequence[dict[str, Any]] = DeltaTable(f"{warehouse}_receipts/receipts").to_pyarrow_table().to_pylist()
    return sorted((row["message_id"], row["state"], row["attempt"]) for row in rows)
