"""The recall handle: the name of a delayed message, as text that an application can store."""

from __future__ import annotations

import base64
import binascii

from commitlake.errors import RecordError, RefusedSendError
from commitlake.protocol.encoding import Position
from commitlake.protocol.wire import RecallRecord

VERSION = "v1"


def encode_handle(recall: RecallRecord) -> str:
    """base64url of `v1 <topic> <queue>-<offset> <message id>`."""
    return base64.urlsafe_b64encode(f"{VERSION} {recall.topic} {recall.message} {recall.msg_id}".encode()).decode()


def decode_handle(handle: str) -> RecallRecord:
    """The recall of the delayed message that `handle` names.

    Raises:
        RefusedSendError: it is not a handle of this version.
    """
    try:
        version, topic, place, msg_id = base64.b64decode(handle, altchars=b"-_", validate=True).decode().split(" ", 3)
        if version == VERSION and topic and msg_id:
            return RecallRecord(msg_id=msg_id, topic=topic, message=Position.parse(place))
    except (binascii.Error, ValueError, TypeError, RecordError):
        pass
    why = "; a message without a delay has none" if handle is None else ""
    msg = f"{str(handle)[:100]!r} is not a recall handle{why}; pass the recall_handle of a delayed message's SendResult"
    raise RefusedSendError(msg)
