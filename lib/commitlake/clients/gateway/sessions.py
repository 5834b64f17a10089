"""The telemetry streams of connected clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from commitlake.clients.gateway.messages import topic_name
from commitlake.clients.gateway.status import ok
from commitlake.clients.gateway.stubs import Proto, definitions, services
from commitlake.errors import GatewayRefusal
from commitlake.protocol.wire import CheckRecord, Settings

_ATTEMPTS, _FIRST_WAIT_MS, _LONGEST_WAIT_MS = 3, 10, 1_000
"""How a client sends again by itself what has failed; RocketMQ's own defaults."""
NO_CONSUMERS = "the gateway is for producers; consumers read with commitlake.consume, or from the tables"


class Session:
    """One telemetry stream of a producer.

    Args:
        client_id: of the client that has opened it.

    Attributes:
        gone: done when the stream has ended.
        has_checker: whether the client has shown that it can be asked: it has sent a half message, or answered.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_checker = False
        self._topics: dict[str, Proto] = {}
        self._commands: asyncio.Queue[Proto | None] = asyncio.Queue()

    def tell(self, command: Proto) -> None:
        """Send a command to the client."""
        self._commands.put_nowait(command)

    async def commands(self) -> AsyncIterator[Proto]:
        """What is to be sent, until the stream ends."""
        while (command := await self._commands.get()) is not None:
            yield command

    def end(self) -> None:
        """Let the stream end; a second time changes nothing."""
        if not self.gone.done():
            self.gone.set_result(None)
            self._commands.put_nowait(None)

    def set_topics(self, topics: Sequence[Proto]) -> None:
        """Note the topics to which the client sends."""
        self._topics = {topic_name(topic): topic for topic in topics}

    def topic_of(self, check: CheckRecord) -> Proto:
        """The topic of a check, as the client names it."""
        return self._topics.get(check.topic) or definitions.Resource(name=check.topic)


def settled(given: Proto, limits: Settings) -> Proto:
    """The answer to a producer's settings: its own, with what the coordinator allows.

    Raises:
        GatewayRefusal: `UNSUPPORTED`, they are those of a consumer.
    """
    if not given.HasField("publishing"):
        raise GatewayRefusal(NO_CONSUMERS, "UNSUPPORTED")
    settings = definitions.Settings()
    settings.CopyFrom(given)
    settings.publishing.max_body_size = limits.max_message_size
    settings.publishing.validate_message_type = True
    settings.backoff_policy.max_attempts = _ATTEMPTS
    backoff = settings.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(_FIRST_WAIT_MS)
    backoff.max.FromMilliseconds(_LONGEST_WAIT_MS)
    backoff.multiplier = 2
    settings.metric.on = False
    return services.TelemetryCommand(status=ok(), settings=settings)
