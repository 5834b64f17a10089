"""RocketMQ's message definitions and server stubs, from the package rocketmq-python-client."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

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
