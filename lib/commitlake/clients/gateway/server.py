"""A gateway's process, which listens until a signal ends it."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from commitlake.clients.gateway.access import Access, Entry
from commitlake.clients.gateway.checks import Checks
from commitlake.clients.gateway.producers import SEND_MS, Producers
from commitlake.clients.gateway.service import MessagingService
from commitlake.clients.gateway.stubs import servicers
from commitlake.clients.producer.link import ENGINES, KafkaLink
from commitlake.config import Config
from commitlake.errors import ConfigError

START_MS = 10_000
"""Wait for Kafka and for the coordinator's settings at the start."""
_MOST_CALLS = 4_000
"""Concurrent calls, including the telemetry stream of each client and waiting receives: a call may hold a body."""
_GRACE_S = 5.0
"""Time for running calls when the gateway ends; each call takes less."""
_STOP_S = 10.0
_OVERHEAD = 1024 * 1024
_CONNECTIONS = (
    # A client whose machine is gone is detected within 25 s, before its silence counts as an answer (`ANSWER_S`).
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients may ping the gateway each 5 s; gRPC's default limit is 5 minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
    # A quarter of `_MOST_CALLS`, so that one client does not take the places of all.
    ("grpc.max_concurrent_streams", _MOST_CALLS // 4),
)


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """The address of a gateway, its TLS files, and who may call.

    Attributes:
        listen: `host:port`; port 0 for any.
        certificate: file with the certificate chain, PEM; None: no TLS.
        private_key: file with its key, PEM.
        access_keys: secrets by access key; empty: everybody on this machine may call, and nobody else.
    """

    listen: str
    certificate: Path | None = None
    private_key: Path | None = None
    access_keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse an invalid address, incomplete TLS, and access for the whole network.

        Raises:
            ConfigError: `listen` is no address, one of the TLS files is missing, or anybody on the network could call.
        """
        found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):(\d{1,5})", self.listen)
        if found is None or int(found[2]) >= 1 << 16:  # gRPC would use the port modulo 65 536
            msg = f"--listen: {self.listen!r} is not allowed; give host:port, for example 127.0.0.1:8081"
            raise ConfigError(msg)
        if (self.certificate is None) != (self.private_key is None):
            msg = "--certificate and --private-key: one is missing; TLS needs both"
            raise ConfigError(msg)
        if not (self.access_keys or self._is_local()):  # a certificate proves who the gateway is, not who calls
            msg = (
                f"--listen: {self.listen!r} is open to the network, and anybody there could send; give --access-keys "
                "(TLS alone keeps nobody out), or listen on 127.0.0.1"
            )
            raise ConfigError(msg)

    def _is_local(self) -> bool:
        host = self.listen.rpartition(":")[0].strip("[]")
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def open(self, server: grpc.aio.Server) -> int:
        """Bind the address; returns the port.

        Raises:
            ConfigError: the address is in use, or the TLS files can't be used.
        """
        try:
            if self.certificate is None or self.private_key is None:
                return int(server.add_insecure_port(self.listen))
            pair = (self.private_key.read_bytes(), self.certificate.read_bytes())
            return int(server.add_secure_port(self.listen, grpc.ssl_server_credentials([pair])))
        except (OSError, RuntimeError, ValueError) as error:
            reason = self._bind_error()
            advice = f"{reason}; choose another host or port" if reason else f"{error}; check the TLS files"
            msg = f"--listen: cannot listen on {self.listen}: {advice}"
            raise ConfigError(msg) from error

    def _bind_error(self) -> str | None:
        """The reason why the address can't be bound, which gRPC writes only to its own log; None when it can."""
        host, _, port = self.listen.rpartition(":")
        try:
            family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as tried:
                tried.bind(address)
        except OSError as error:
            return error.strerror
        return None


@asynccontextmanager
async def opened(
    settings: Config, entrance: Entrance, engine: str = ENGINES[0], fifo: Sequence[str] = ()
) -> AsyncIterator[int]:
    """Connect to Kafka and run a gateway within the `with` block; yields its port.

    Raises:
        ProducerError: Kafka is out of reach, no coordinator has ever run there, or there is no such engine.
        SetupError: the engine's package is missing.
        ConfigError: the gateway can't listen on the address.
    """
    link = KafkaLink(settings.kafka, START_MS, {}, engine)
    await asyncio.to_thread(link.start, SEND_MS)
    try:
        async with listening(link, settings, entrance, fifo) as port:
            yield port
    finally:
        await asyncio.to_thread(link.stop, _STOP_S)


@asynccontextmanager
async def listening(
    link: KafkaLink, settings: Config, entrance: Entrance, fifo: Sequence[str] = ()
) -> AsyncIterator[int]:
    """Run a gateway over a connection that has started; yields its port. `fifo` has shell patterns of FIFO groups."""
    producers = Producers(link)
    access = Access(entrance.access_keys)
    service = MessagingService(access, producers, Checks(link, producers), settings, fifo)
    # Twice the limit, so that a body slightly above it gets RocketMQ's status and not gRPC's.
    most = 2 * link.settings.max_message_size + _OVERHEAD
    options = [*_CONNECTIONS, ("grpc.max_receive_message_length", most)]
    server = grpc.aio.server(interceptors=[Entry(access)], options=options, maximum_concurrent_rpcs=_MOST_CALLS)
    servicers.add_MessagingServiceServicer_to_server(service, server)
    port = entrance.open(server)
    await server.start()
    try:
        yield port
    finally:
        await service.close()  # first: `stop` would wait for the telemetry streams
        await server.stop(_GRACE_S)


async def serve(settings: Config, entrance: Entrance, engine: str, fifo: Sequence[str]) -> None:
    """Listen until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with opened(settings, entrance, engine, fifo=fifo) as port:
        print(f"READY gateway on port {port}", flush=True)
        await ended.wait()
