"""The command `commitlake gateway`."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from commitlake.config import Config
from commitlake.config.secret_references import is_secret_reference, resolve
from commitlake.errors import ConfigError, SetupError, installed_by
from commitlake.tools.cli.options import command, optional, with_address


@command
def gateway(
    settings: Config,
    listen: str = optional(
        "--listen", "HOST:PORT", "Port 0: any. Beyond this machine it needs --access-keys.", "127.0.0.1:8081"
    ),
    certificate: Path | None = optional("--certificate", "FILE", "TLS: the certificate chain, PEM."),
    private_key: Path | None = optional("--private-key", "FILE", "TLS: its key, PEM."),
    access_keys: str | None = optional("--access-keys", "REFERENCE", "Lines `key: secret`: file:/path or env:NAME."),
    engine: str | None = optional("--engine", "NAME", "What sends: confluent, where it is installed, or kafka-python."),
    fifo: list[str] | None = optional(
        "--fifo", "GROUP", "A FIFO consumer group, or pattern; can be given several times."
    ),
) -> None:
    """Let RocketMQ 5's own clients send and consume, by gRPC.

    Needs no Spark; runs beside the coordinator, any number of times. Ends with SIGTERM or Ctrl-C.
    """
    settings = with_address(settings)
    for module in ("grpc", "rocketmq", "deltalake"):
        if importlib.util.find_spec(module) is None:
            msg = f"the Python module {module} is missing; install it with {installed_by('gateway')}"
            raise SetupError(msg)
    from commitlake.clients.gateway.access import parse_keys
    from commitlake.clients.gateway.server import Entrance, serve

    keys = parse_keys(_text(access_keys)) if access_keys else {}
    entrance = Entrance(listen=listen, certificate=certificate, private_key=private_key, access_keys=keys)
    sender = engine or ("confluent" if importlib.util.find_spec("confluent_kafka") else "kafka-python")
    asyncio.run(serve(settings, entrance, sender, fifo or []))


def _text(access_keys: str) -> str:
    if not is_secret_reference(access_keys):  # not shown: it may be the keys themselves
        msg = "--access-keys: this only says where the keys are; give file:/path, env:NAME or secret:scope/key"
        raise ConfigError(msg)
    return resolve("--access-keys", access_keys)
