"""Conversion of RocketMQ 5's messages into a producer's messages, and of transactions and checks into RocketMQ 5's."""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote

from commitlake.clients.gateway.stubs import Proto, definitions, services
from commitlake.clients.producer.message import Message
from commitlake.config import GatewayConfig
from commitlake.errors import GatewayRefusal, RecordError
from commitlake.protocol import headers
from commitlake.protocol.encoding import MAX_ID_LENGTH, Position
from commitlake.protocol.wire import MAX_HALF_MESSAGES, CheckRecord, OpRecord

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_STORED = (headers.PGROUP, headers.TRANSACTION_ID)
"""Properties that are not stored: one names the group, and one comes with a message that a consumer sends on."""
_NEEDS = {definitions.FIFO: "message_group", definitions.DELAY: "delivery_timestamp"}
_OWN_KINDS = {definitions.LITE: "lite", definitions.PRIORITY: "priority"}
_GZIP_WINDOW = 31
_MOST_MEMBERS, _CHUNK = 100, 1 << 16
"""Members of a gzip body, and bytes of it that zlib gets at once: zlib copies the bytes that follow a member."""


def topic_name(resource: Proto) -> str:
    """A topic's name, after its namespace and `%` if it has a namespace, as in RocketMQ."""
    space = resource.resource_namespace
    return f"{space}%{resource.name}" if space else str(resource.name)


def group_of(given: Proto) -> str:
    """The producer group: the user property `PGROUP`, or else the topic, as in RocketMQ's proxy."""
    return given.user_properties.get(headers.PGROUP) or topic_name(given.topic)


def is_half(given: Proto) -> bool:
    """Whether a message belongs to a transaction."""
    return bool(given.system_properties.message_type == definitions.TRANSACTION)


def producer_message(given: Proto, most: int, limits: GatewayConfig) -> Message:
    """The message as a producer sends it; a gzip body is unpacked to at most `most` + 1 bytes.

    Raises:
        GatewayRefusal: the gateway does not accept such a message.
        ProducerError: its id is missing or too long.
    """
    own = given.system_properties
    if not given.topic.name:
        msg = "the message has no topic; name one"
        raise GatewayRefusal(msg, "ILLEGAL_TOPIC")
    _check_kind(own)
    _check_texts(own, limits)
    message = Message(
        topic_name(given.topic),
        _body(given, most),
        tags=own.tag or None,
        keys=" ".join(own.keys) or None,
        sharding_key=own.message_group or None,
        message_id=own.message_id,
        properties=_properties(given, limits),
    )
    if own.HasField("delivery_timestamp"):
        message.deliver_at = _delivery_ms(own.delivery_timestamp)
    if own.HasField("orphaned_transaction_recovery_duration"):
        message.check_immunity_seconds = -(-own.orphaned_transaction_recovery_duration.ToMilliseconds() // 1_000)
    return message


@dataclass(frozen=True, kw_only=True)
class TransactionHandle:
    """Names an open transaction, and the check that asks about it.

    Clients echo it as the transaction id, so any gateway can end the transaction.

    Attributes:
        transaction_id: as in the coordinator's tables.
        group: producer group.
        half_messages: positions of the half messages in `half`, the first one first.
        check_id: id of the check; None for the producer's own decision.
    """

    transaction_id: str
    group: str
    half_messages: tuple[Position, ...]
    check_id: str | None = None

    @classmethod
    def of_check(cls, check: CheckRecord) -> Self:
        """The handle that a check carries to the client."""
        return cls(
            transaction_id=check.transaction_id,
            group=check.producer_group,
            half_messages=check.half_messages,
            check_id=check.check_id,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The handle that `__str__` has written.

        Raises:
            GatewayRefusal: `INVALID_TRANSACTION_ID`.
        """
        try:
            transaction_id, group, places, check_id = map(unquote, text.split(":"))
            halves = tuple(Position.parse(place) for place in places.split(","))
            are_names = all(0 < len(name) <= MAX_ID_LENGTH for name in (transaction_id, group))
            if are_names and len(halves) <= MAX_HALF_MESSAGES:
                return cls(transaction_id=transaction_id, group=group, half_messages=halves, check_id=check_id or None)
        except (ValueError, RecordError):
            pass
        msg = f"{text[:100]!r} is not a transaction id of this gateway; end a transaction with the id of its send"
        raise GatewayRefusal(msg, "INVALID_TRANSACTION_ID")

    def __str__(self) -> str:
        """`<transaction id>:<group>:<queue>-<offset>,...:<check id>`, each percent-encoded."""
        places = ",".join(map(str, self.half_messages))
        fields = (self.transaction_id, self.group, places, self.check_id or "")
        return ":".join(quote(field, safe=",") for field in fields)

    def op(self, decision: str, remark: str | None = None) -> OpRecord:
        """The record that ends the transaction, or its check."""
        return OpRecord(
            transaction_id=self.transaction_id,
            producer_group=self.group,
            decision=decision,
            half_messages=self.half_messages,
            from_check=self.check_id is not None,
            check_id=self.check_id,
            remark=remark,
        )


def sent_back(message_id: str, kind: int, body: bytes, tags: str | None, keys: str | None, attempt: int) -> Proto:
    """The properties of a message that goes to a client; `kind` is RocketMQ's type of message."""
    return definitions.SystemProperties(
        message_id=message_id,
        message_type=kind,
        body_encoding=definitions.IDENTITY,
        body_digest=definitions.Digest(type=definitions.SHA1, checksum=hashlib.sha1(body).hexdigest().upper()),
        tag=tags,
        keys=(keys or "").split(),
        delivery_attempt=attempt,
    )


def check_command(check: CheckRecord, topic: Proto) -> Proto:
    """The command that asks a producer about one of its transactions; `topic` is as the producer names it."""
    own = sent_back(check.msg_id, definitions.TRANSACTION, check.body, check.tags, check.keys, check.check_times)
    own.born_timestamp.FromMilliseconds(check.born_timestamp or 0)
    own.store_timestamp.FromMilliseconds(check.stored_timestamp or 0)
    message = definitions.Message(
        topic=topic, user_properties=dict(check.properties), system_properties=own, body=check.body
    )
    command = services.RecoverOrphanedTransactionCommand(
        message=message, transaction_id=str(TransactionHandle.of_check(check))
    )
    return services.TelemetryCommand(recover_orphaned_transaction_command=command)


def _check_kind(own: Proto) -> None:
    kind = own.message_type
    if kind in _OWN_KINDS or own.HasField("lite_topic") or own.HasField("priority"):
        msg = "lite topics and priorities are not supported; send a normal, FIFO, delayed or transactional message"
        raise GatewayRefusal(msg, "UNSUPPORTED")
    if (needed := _NEEDS.get(kind)) and not own.HasField(needed):
        msg = f"a message of type {definitions.MessageType.Name(kind)} needs {needed}; set it"
        raise GatewayRefusal(msg, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE")


def _delivery_ms(given: Proto) -> int:
    try:
        return int(given.ToMilliseconds())
    except ValueError as error:
        msg = f"the delivery timestamp is out of range: {error}"
        raise GatewayRefusal(msg, "ILLEGAL_DELIVERY_TIME") from error


def _check_texts(own: Proto, limits: GatewayConfig) -> None:
    if "|" in own.tag or _CONTROL.search(own.tag):
        msg = f"the tag is {own.tag!r:.100}; it must have no | and no control character"
        raise GatewayRefusal(msg, "ILLEGAL_MESSAGE_TAG")
    if not all(key.strip() and not _CONTROL.search(key) for key in own.keys):
        msg = "a key of the message is blank or has a control character; give it others, or leave it out"
        raise GatewayRefusal(msg, "ILLEGAL_MESSAGE_KEY")
    group, most = own.message_group, limits.max_message_group
    is_legal = group.strip() and not _CONTROL.search(group) and len(group.encode()) <= most
    if own.HasField("message_group") and not is_legal:
        msg = (
            f"the message group is {group!r:.100}; it must not be blank, have no control character, and at most {most} "
            "bytes (gateway.max_message_group)"
        )
        raise GatewayRefusal(msg, "ILLEGAL_MESSAGE_GROUP")


def _properties(given: Proto, limits: GatewayConfig) -> dict[str, str]:
    own = given.system_properties
    properties = {name: value for name, value in given.user_properties.items() if name not in _NOT_STORED}
    texts = [own.tag, *own.keys, *properties, *properties.values()]
    most, most_bytes = limits.max_properties, limits.max_property_size
    if (size := sum(len(text.encode()) for text in texts)) > most_bytes or len(properties) > most:
        msg = (
            f"{len(properties)} properties, tag and keys have {size} bytes; a message may have {most} properties "
            f"(gateway.max_properties), and {most_bytes} bytes (gateway.max_property_size)"
        )
        raise GatewayRefusal(msg, "MESSAGE_PROPERTIES_TOO_LARGE")
    for name, value in properties.items():
        is_reserved = name in headers.RESERVED_HEADERS and name != headers.CHECK_IMMUNITY
        if not (name and value) or is_reserved or _CONTROL.search(name):
            msg = (
                f"property {name!r:.100} is a name of the protocol, has a control character, or lacks name or value; "
                "choose others"
            )
            raise GatewayRefusal(msg, "ILLEGAL_MESSAGE_PROPERTY_KEY")
    return properties


def _body(given: Proto, most: int) -> bytes:
    body: bytes = given.body
    if given.system_properties.body_encoding != definitions.GZIP:
        return body
    try:
        return _unpacked(body, most)
    except zlib.error as error:
        msg = f"the body says gzip and is not: {error}"
        raise GatewayRefusal(msg, "MESSAGE_CORRUPTED") from error


def _unpacked(packed: bytes, most: int) -> bytes:
    """All members of a gzip body, joined; at most `most` + 1 bytes, however large the body would become."""
    found = bytearray()
    at = members = 0
    while not members or at < len(packed):
        inflater, members = zlib.decompressobj(_GZIP_WINDOW), members + 1
        while not inflater.eof:
            chunk = packed[at : at + _CHUNK]
            found += inflater.decompress(chunk, most + 1 - len(found))
            if len(found) > most:
                return bytes(found)
            if not chunk or members > _MOST_MEMBERS:
                msg = f"the body ends before its gzip stream does, or has more than {_MOST_MEMBERS} of them"
                raise GatewayRefusal(msg, "MESSAGE_CORRUPTED")
            at += len(chunk) - len(inflater.unused_data) - len(inflater.unconsumed_tail)
    return bytes(found)
