"""The gateway's side towards Kafka: producers of many groups over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import TypeVar

from commitlake.clients.daemon_pool import DaemonPool
from commitlake.clients.gateway.messages import TransactionHandle
from commitlake.clients.producer.link import KafkaLink
from commitlake.clients.producer.message import ROLLBACK, Message, SendResult
from commitlake.clients.producer.on_loop import SendLanes
from commitlake.clients.producer.transaction import Ending, HalfMessage
from commitlake.clients.producer.transactional import NEVER_COMMITTED, TransactionMQProducer, log_lost
from commitlake.protocol import wire
from commitlake.protocol.kafka_topics import OP

SEND_MS = 2_500
"""Less than the 3 s that RocketMQ 5's clients wait, so that they get the outcome of a send."""
THREADS = 64
_GROUPS = 1_000
"""Producers that are cached; a producer that is created again behaves the same."""
_END_AGAIN = "end the transaction again; if nobody does, a check asks for the decision"

T = TypeVar("T")


class GroupProducer(TransactionMQProducer):
    """A producer of one group, over a connection that it neither starts nor stops."""

    def __init__(self, group: str, link: KafkaLink) -> None:
        super().__init__(group, bootstrap_servers=link.kafka.bootstrap_servers, send_msg_timeout=SEND_MS / 1_000)
        self._link = link

    def roll_back(self, half: HalfMessage) -> None:
        """Roll back, without waiting, a half message that nobody else can end: its client never got the handle."""
        self._end_with(Ending.of([half], ROLLBACK, NEVER_COMMITTED), log_lost)

    def end(self, handle: TransactionHandle, decision: str, remark: str | None = None) -> None:
        """Send a decision, and wait for its acknowledgement.

        Raises:
            FailedSendError: nothing was sent.
            UncertainSendError: Kafka did not acknowledge the decision in time.
        """
        record = wire.encode_op(handle.op(decision, remark))
        self._link.send(OP, handle.half_messages[0].queue, record, SEND_MS, _END_AGAIN)


class Producers:
    """The producers of all groups. Each call blocks a thread of their pool, for `SEND_MS` at most."""

    def __init__(self, link: KafkaLink) -> None:
        self._link, self._pool, self._lanes = link, DaemonPool(THREADS, "commitlake-gateway"), SendLanes()
        self._of: Callable[[str], GroupProducer] = lru_cache(_GROUPS)(partial(GroupProducer, link=link))

    @property
    def limits(self) -> wire.Settings:
        """The newest limits that the coordinator has published."""
        return self._link.settings

    async def send(self, group: str, messages: Sequence[Message]) -> SendResult:
        """Send one message, or several as one batch; see `DefaultMQProducer.send`."""
        producer = self._of(group)
        async with self._lanes.of(messages):
            return await self._run(partial(producer.send, messages[0] if len(messages) == 1 else messages))

    async def send_half(self, group: str, message: Message) -> HalfMessage:
        """Send a half message. When the awaiting task is cancelled, the send does not begin, or is rolled back."""
        producer = self._of(group)
        async with self._lanes.of(message):
            sending = self._pool.submit(partial(producer.send_half, message))
            try:
                return await asyncio.shield(asyncio.wrap_future(sending))
            except asyncio.CancelledError:
                if not sending.cancel():
                    sending.add_done_callback(partial(_roll_back_sent, producer))
                raise

    async def end(self, handle: TransactionHandle, decision: str, remark: str | None = None) -> None:
        """Send a decision; see `GroupProducer.end`."""
        await self._run(partial(self._of(handle.group).end, handle, decision, remark))

    async def recall(self, recall_handle: str) -> str:
        """Recall a delayed message; see `DefaultMQProducer.recall`. A recall names no group, so any group serves."""
        return await self._run(partial(self._of("recall").recall, recall_handle))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._pool.submit(call))


def _roll_back_sent(producer: GroupProducer, sending: Future[HalfMessage]) -> None:
    if not sending.cancelled() and not sending.exception():
        producer.roll_back(sending.result())
