"""A gateway as users start it, with RocketMQ's own Python client, and one over a Kafka in memory, called by gRPC."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from deltalake import DeltaTable
from tests.support.killing import kill

from commitlake.clients.consumer import clerk, group_member
from commitlake.clients.gateway.server import Entrance, listening
from commitlake.clients.gateway.stubs import definitions as d
from commitlake.clients.gateway.stubs import servicers
from commitlake.clients.gateway.stubs import services as s
from commitlake.testing import InMemoryCoordinator
from commitlake.testing.producer import MemoryEngine, MemoryLink


class GatewayProcess:
    """`commitlake gateway`, a process of its own.

    Args:
        servers: Kafka's address.
        prefix: the coordinator's `kafka.topic_prefix`.
        options: of the command.
    """

    def __init__(self, servers: str, prefix: str, *options: str, port: int = 0) -> None:
        sets = [f"--set=kafka.bootstrap_servers={servers}", f"--set=kafka.topic_prefix={prefix}"]
        command = [sys.executable, "-m", "commitlake.tools.cli", "gateway", f"--listen=127.0.0.1:{port}", *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [*command, *sets], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("READY"), line
        self.port = int(line.split()[-1])

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        kill(self.process)


@contextmanager
def gateway(servers: str, prefix: str, *options: str, port: int = 0) -> Iterator[GatewayProcess]:
    """One that is killed at the end, if it has not ended by then."""
    process = GatewayProcess(servers, prefix, *options, port=port)
    try:
        yield process
    finally:
        process.kill()


def certified(place: Path) -> tuple[str, str]:
    """The options of a gateway with a certificate for localhost, which is written to a folder."""
    certificate, key = place / "gateway.pem", place / "gateway.key"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *files], check=True, capture_output=True)
    return f"--certificate={certificate}", f"--private-key={key}"


@contextmanager
def client(
    port: int, *topics: str, check: Callable[[Any], Any] | None = None, keys: tuple[str, str] = ("", "")
) -> Iterator[Any]:
    """A producer of RocketMQ's Python client that has started.

    Args:
        port: of the gateway.
        topics: to which it says that it sends.
        check: answers a check; None for a producer without transactions.
        keys: access key and secret.
    """
    import rocketmq

    class Checker(rocketmq.TransactionChecker):  # type: ignore[misc]
        def check(self, message: Any) -> Any:
            assert check is not None
            return check(message)

    configuration = rocketmq.ClientConfiguration(f"127.0.0.1:{port}", rocketmq.Credentials(*keys))
    producer = rocketmq.Producer(configuration, topics, checker=Checker() if check else None)
    producer.startup()
    try:
        yield producer
    finally:
        producer.shutdown()


def client_message(topic: str, body: bytes, **fields: Any) -> Any:
    import rocketmq

    made = rocketmq.Message()
    made.topic, made.body = topic, body
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def transaction(producer: Any, given: Any) -> Any:
    """A transaction whose half message is sent."""
    begun = producer.begin_transaction()
    producer.send(given, begun)
    return begun


@contextmanager
def simple_consumer(
    port: int, topic: str, group: str = "points", keys: tuple[str, str] = ("", ""), wait_s: int = 3, **more: Any
) -> Iterator[Any]:
    """A simple consumer of RocketMQ's Python client that has started.

    Args:
        port: of the gateway.
        topic: from which it receives.
        group: of consumers.
        keys: access key and secret.
        wait_s: for a message, s.
        more: of the filter expression.
    """
    import rocketmq

    configuration = rocketmq.ClientConfiguration(f"127.0.0.1:{port}", rocketmq.Credentials(*keys))
    subscription = {topic: rocketmq.FilterExpression(**more)}
    consumer = rocketmq.SimpleConsumer(configuration, group, subscription, await_duration=wait_s)
    consumer.startup()
    try:
        yield consumer
    finally:
        consumer.shutdown()


@contextmanager
def push_consumer(port: int, topic: str, consume: Callable[[Any], bool], group: str = "points") -> Iterator[Any]:
    """A push consumer of RocketMQ's Python client that has started; `consume` says whether it went well."""
    import rocketmq

    class Listener(rocketmq.MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            return rocketmq.ConsumeResult.SUCCESS if consume(message) else rocketmq.ConsumeResult.FAILURE

    configuration = rocketmq.ClientConfiguration(f"127.0.0.1:{port}", rocketmq.Credentials("", ""))
    consumer = rocketmq.PushConsumer(configuration, group, Listener(), {topic: rocketmq.FilterExpression()})
    consumer.startup()
    try:
        yield consumer
    finally:
        consumer.shutdown()


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
