"""The telemetry streams of connected clients."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence

from commitlake.clients.gateway.access import Caller
from commitlake.clients.gateway.messages import topic_name
from commitlake.clients.gateway.stubs import Proto, definitions, ok, services
from commitlake.protocol import topic_names
from commitlake.protocol.wire import CheckRecord, Settings

log = logging.getLogger(__name__)

MOST_TOPICS = 100
"""Topics of one client whose checks it can be asked for."""
MOST_UNSENT, MOST_UNSENT_BYTES = 200, 16 << 20
"""Commands that one client has not read yet, and their bytes; a single command may be larger."""
_ATTEMPTS, _FIRST_WAIT_MS, _LONGEST_WAIT_MS = 3, 10, 1_000
"""How a client retries a failed send by itself; RocketMQ's own defaults."""


class Session:
    """One telemetry stream of a client.

    Attributes:
        gone: done when the stream has ended.
        refusal: the status of settings that were refused; the stream ends with it.
        request_s: how long the client waits for an answer, as its settings say; 0 before it has said so.
        groups: number of groups whose checks it gets.
        has_checker: whether the client has shown that it can answer checks, by a half message or a decision.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusal: Proto = None
        self.request_s = 0.0
        self.has_checker = False
        self.groups = 0
        self._topics: dict[str, Proto] = {}
        self._commands: deque[Proto] = deque()
        self._unsent_bytes = 0
        self._has_news = asyncio.Event()

    def ask(self, command: Proto) -> bool:
        """Queue a command for the client. False, and nothing is queued, when too many earlier ones are unread."""
        size = command.ByteSize()
        is_full = len(self._commands) >= MOST_UNSENT or self._unsent_bytes + size > MOST_UNSENT_BYTES
        if self._commands and is_full:
            return False
        self._commands.append(command)
        self._unsent_bytes += size
        self._has_news.set()
        return True

    def tell(self, command: Proto) -> None:
        """Send the answer to a client's settings. The stream ends when the client asks but does not read."""
        if not self.ask(command):
            log.warning("the stream of client %.100r ends: it does not read what it asks for", self.caller.client)
            self.end()

    async def commands(self) -> AsyncIterator[Proto]:
        """The queued commands, as they come, until the stream ends."""
        while True:
            await self._has_news.wait()
            while self._commands and not self.gone.done():
                command = self._commands.popleft()
                self._unsent_bytes -= command.ByteSize()
                yield command
            if self.gone.done():
                return
            self._has_news.clear()

    def end(self) -> None:
        """End the stream; a second call changes nothing."""
        if not self.gone.done():
            self.gone.set_result(None)
            self._has_news.set()

    def set_topics(self, topics: Sequence[Proto]) -> list[str]:
        """Note the topics to which the client sends, and return the names of the first `MOST_TOPICS`.

        Raises:
            RecordError: `ILLEGAL_TOPIC`.
        """
        if len(topics) > MOST_TOPICS:
            text = "of the %d topics of client %.100r only the first %d have their checks answered"
            log.warning(text, len(topics), self.caller.client, MOST_TOPICS)
        named = {topic_name(topic): topic for topic in topics[:MOST_TOPICS]}
        for name in named:
            topic_names.check_name(name)
        self._topics = {name: definitions.Resource() for name in named}
        for name, topic in named.items():
            self._topics[name].CopyFrom(topic)  # a part of the request would keep all of it in memory
        return list(named)

    def topic_of(self, check: CheckRecord) -> Proto:
        """The topic of a check, as the client names it."""
        return self._topics.get(check.topic) or definitions.Resource(name=check.topic)


def producer_settings(given: Proto, limits: Settings) -> Proto:
    """The answer to a producer's settings: the coordinator's limits, without the fields that may have any size."""
    settings = definitions.Settings(client_type=given.client_type, request_timeout=given.request_timeout)
    settings.publishing.max_body_size = limits.max_message_size
    settings.publishing.validate_message_type = True
    settings.backoff_policy.max_attempts = _ATTEMPTS
    backoff = settings.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(_FIRST_WAIT_MS)
    backoff.max.FromMilliseconds(_LONGEST_WAIT_MS)
    backoff.multiplier = 2
    settings.metric.on = False
    return services.TelemetryCommand(status=ok(), settings=settings)
