"""RocketMQ's message definitions and server stubs, from the package rocketmq-python-client, and its status codes."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from functools import cache
from types import ModuleType
from typing import Any

from commitlake.errors import FailedSendError, GatewayRefusal, ProducerError, RecordError, UncertainSendError
from commitlake.kafka.throttled import Throttle

log = logging.getLogger(__name__)

Proto = Any
"""A protobuf message. Protobuf makes the classes while it loads the module, so no type checker knows them."""
_PACKAGE = "rocketmq"


def _loaded() -> list[ModuleType]:
    """Load the three modules without their package: the package is a client that writes logs to the home directory.

    A later import of the package gets all of it.
    """
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec:
        bare = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
        bare.__path__ = list(spec.submodule_search_locations or [])
    try:
        names = ("definition_pb2", "service_pb2", "service_pb2_grpc")
        return [importlib.import_module(f"{_PACKAGE}.grpc_protocol.{name}") for name in names]
    finally:
        if spec:
            del sys.modules[_PACKAGE]


definitions, services, servicers = _loaded()

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
"""Status codes by the reason for a refusal; any other reason is BAD_REQUEST."""


def ok() -> Proto:
    """The status of success."""
    return definitions.Status(code=definitions.OK, message="OK")


def status_of(error: Exception) -> Proto:
    """The status of an error. An unexpected error is logged, and its text is not sent to the client."""
    name = _code(error)
    if name == "INTERNAL_SERVER_ERROR" and _throttle(type(error).__name__).is_due():
        log.error("a call failed; the next such line comes in a minute or later", exc_info=error)
    text = "the gateway failed; its log says why" if name == "INTERNAL_SERVER_ERROR" else str(error)
    return definitions.Status(code=definitions.Code.Value(name), message=text)


@cache
def _throttle(kind: str) -> Throttle:
    """The throttle of the log, for each kind of error: a client may call without end while a table can't be read."""
    return Throttle()


def _code(error: Exception) -> str:
    if isinstance(error, GatewayRefusal):
        return error.code
    if isinstance(error, UncertainSendError):
        return "MASTER_PERSISTENCE_TIMEOUT"
    if isinstance(error, (ProducerError, RecordError)):
        unavailable = type(error) is FailedSendError
        return "HA_NOT_AVAILABLE" if unavailable else _OF_REASONS.get(error.reason or "", "BAD_REQUEST")
    return "INTERNAL_SERVER_ERROR"
