"""A gateway as users start it, and RocketMQ's own Python client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.killing import kill


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


def message(topic: str, body: bytes, **fields: Any) -> Any:
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
