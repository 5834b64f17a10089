"""Topic tables as lists: what consumers would see, each name once where `topics.dedup` says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commitlake.config.values import Dedup
from commitlake.protocol import headers, wire
from commitlake.protocol.encoding import Position
from commitlake.protocol.message_batch import Member
from commitlake.protocol.names import Claims, Names
from commitlake.protocol.statemachine.rows import coordinate
from commitlake.protocol.states import Source
from commitlake.testing.codecs import unpack
from commitlake.testing.landing import hashed


@dataclass(frozen=True, kw_only=True)
class VisibleMessage:
    """A message as its topic shows it. Times are ms since epoch, UTC.

    Attributes:
        topic: its topic.
        body: its body.
        message_id: its id.
        transaction_id: of a transaction, else None.
        producer_group: who sent it.
        queue_id: its queue.
        tags: what consumers filter by.
        keys: business keys.
        properties: user properties.
        sharding_key: key of the Kafka record.
        position: `<source>-<queue>-<offset>-<index>`, which identifies it for ever.
        stored_at: when Kafka stored it.
        due_at: when it was due, of one with a delay, else None.
        visible_at: when it became visible.
    """

    topic: str
    body: bytes
    message_id: str
    transaction_id: str | None
    producer_group: str | None
    queue_id: int
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    sharding_key: bytes | None
    position: str
    stored_at: int
    due_at: int | None
    visible_at: int


def place(source: Source, at: Position) -> int:
    """A record as one number, as in `dedup_index.place_sql`: records take names in this order."""
    number = int(coordinate(at.queue, at.offset))
    return number if source is Source.HALF else number - 2**63


class Shown:
    """The visible messages of all topics."""

    def __init__(self, dedup: Mapping[str, Dedup]) -> None:
        self._dedup = dedup
        self._names = {topic: Names(each.window_ms) for topic, each in dedup.items()}
        self._topics: dict[str, list[VisibleMessage]] = {}

    def of(self, topic: str) -> list[VisibleMessage]:
        """The messages of a topic, in the order in which they became visible."""
        return list(self._topics.get(topic, ()))

    def show(
        self, record: wire.MessageRecord, source: Source, at: Position, stored: int, now: int, due: int | None = None
    ) -> str | None:
        """Show a message, or all members of a batch; none of them if another message holds one of their names.

        Times are ms since epoch, UTC. Returns the position of the record that holds the name; None: it was shown.
        """
        messages = _messages(record, source, at, stored, max(now, stored), due)
        holder = self._claim(messages, place(source, at), now)
        if holder is None:
            self._topics.setdefault(record.topic, []).extend(messages)
        return holder

    def _claim(self, messages: Sequence[VisibleMessage], own: int, now: int) -> str | None:
        topic = messages[0].topic
        if topic not in self._dedup:
            return None
        names = [getattr(message, self._dedup[topic].by) for message in messages]
        hashes = np.array([hashed(name) for name in names if name], np.int64)
        times = np.full(len(hashes), messages[0].visible_at, np.int64)
        verdict = self._names[topic].claim(Claims(hashes, np.full(len(hashes), own, np.int64), times), now)
        if not verdict.refused.any():
            return None
        holder = int(verdict.holder[verdict.refused][0])
        held_by = Source.HALF if holder >= 0 else Source.MESSAGES
        return f"{held_by.name.lower()}-{Position.from_coordinate(holder & (2**63 - 1))}"


def _messages(
    record: wire.MessageRecord, source: Source, at: Position, stored: int, visible: int, due: int | None
) -> list[VisibleMessage]:
    members = [Member(record.body, _own(record))]
    if record.batch is not None:
        members = unpack(record, {})
    return [
        VisibleMessage(
            topic=record.topic,
            body=member.body,
            message_id=member.properties[headers.UNIQ_KEY],
            transaction_id=record.transaction_id if isinstance(record, wire.HalfRecord) else None,
            producer_group=member.properties.get(headers.PGROUP, record.producer_group),
            queue_id=at.queue if record.queue_id is None else record.queue_id,
            tags=member.properties.get(headers.TAGS) or None,
            keys=member.properties.get(headers.KEYS) or None,
            properties={name: text for name, text in member.properties.items() if name not in headers.PROTOCOL_HEADERS},
            sharding_key=record.sharding_key,
            position=f"{source.name.lower()}-{at}-{index}",
            stored_at=stored,
            due_at=due,
            visible_at=visible,
        )
        for index, member in enumerate(members)
    ]


def _own(record: wire.MessageRecord) -> dict[str, str]:
    """The properties of a message that is no batch, as a member of a batch has them."""
    named = {headers.UNIQ_KEY: record.msg_id, headers.TAGS: record.tags, headers.KEYS: record.keys}
    return {**record.properties, **{name: text for name, text in named.items() if text is not None}}
