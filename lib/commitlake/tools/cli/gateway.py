"""The work of `commitlake gateway`."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from commitlake.config import Config
from commitlake.config.secret_references import is_secret_reference, resolve
from commitlake.errors import ConfigError, SetupError, installed_by
from commitlake.tools.cli.options import with_address


def run(
    settings: Config,
    listen: str,
    certificate: Path | None,
    private_key: Path | None,
    access_keys: str | None,
    engine: str | None = None,
    fifo: Sequence[str] = (),
) -> int:
    """Serve until a signal; returns the exit code. Without `engine`, librdkafka sends where its package is there."""
    settings = with_address(settings)
    for module in ("grpc", "rocketmq", "deltalake"):
        if importlib.util.find_spec(module) is None:
            msg = f"the Python module {module} is missing; install it with {installed_by('gateway')}"
            raise SetupError(msg)
    from commitlake.clients.gateway.access import parse_keys
    from commitlake.clients.gateway.server import Entrance, serve

    keys = parse_keys(_text(access_keys)) if access_keys else {}
    entrance = Entrance(listen=listen, certificate=certificate, private_key=private_key, access_keys=keys)
    is_there = importlib.util.find_spec("confluent_kafka") is not None
    asyncio.run(serve(settings, entrance, engine or ("confluent" if is_there else "kafka-python"), fifo))
    return 0


def _text(access_keys: str) -> str:
    if not is_secret_reference(access_keys):  # not shown: it may be the keys themselves
        msg = "--access-keys: this only says where the keys are; give file:/path, env:NAME or secret:scope/key"
        raise ConfigError(msg)
    return resolve("--access-keys", access_keys)
