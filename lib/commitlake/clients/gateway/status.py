"""RocketMQ's status codes for success, refusals and failures."""

from __future__ import annotations

import logging

from commitlake.clients.gateway.stubs import Proto, definitions
from commitlake.errors import FailedSend, GatewayRefusal, MQClientException, UncertainSend

log = logging.getLogger(__name__)

_OF_REASONS = {
    "MISSING_REAL_TOPIC": "ILLEGAL_TOPIC",
    "ILLEGAL_TOPIC": "ILLEGAL_TOPIC",
    "TOPIC_NOT_ALLOWED": "TOPIC_NOT_FOUND",
    "MISSING_UNIQ_KEY": "ILLEGAL_MESSAGE_ID",
    "BODY_TOO_LARGE": "MESSAGE_BODY_TOO_LARGE",
    "BAD_DELAY": "ILLEGAL_DELIVERY_TIME",
    "DELAY_TOO_LONG": "ILLEGAL_DELIVERY_TIME",
    "BAD_BATCH": "MESSAGE_CORRUPTED",
    "ILLEGAL_MESSAGE_TAG": "ILLEGAL_MESSAGE_TAG",
    "TRANSACTIONS_REJECTED": "FORBIDDEN",
}
"""Status codes by a producer's reason for a refusal; any other reason is BAD_REQUEST."""


def ok() -> Proto:
    """The status of success."""
    return definitions.Status(code=definitions.OK, message="OK")


def status_of(error: Exception) -> Proto:
    """The status of an error. An unexpected error is logged, and its text is not sent to the client."""
    name = _code(error)
    if name == "INTERNAL_SERVER_ERROR":
        log.error("a call failed", exc_info=error)
    text = "the gateway failed; its log says why" if name == "INTERNAL_SERVER_ERROR" else str(error)
    return definitions.Status(code=definitions.Code.Value(name), message=text)


def _code(error: Exception) -> str:
    if isinstance(error, GatewayRefusal):
        return error.code
    if isinstance(error, UncertainSend):
        return "MASTER_PERSISTENCE_TIMEOUT"
    if isinstance(error, MQClientException):
        unavailable = type(error) is FailedSend
        return "HA_NOT_AVAILABLE" if unavailable else _OF_REASONS.get(error.reason or "", "BAD_REQUEST")
    return "INTERNAL_SERVER_ERROR"
