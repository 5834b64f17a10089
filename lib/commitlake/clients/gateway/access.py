"""Authorization of calls: clients sign them as RocketMQ 5's clients do, with a key that the gateway knows."""

from __future__ import annotations

import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
import yaml

from commitlake.clients.gateway.stubs import Proto, services, status_of
from commitlake.config import yaml_texts
from commitlake.errors import ConfigError, GatewayRefusal

CLIENT_ID = "x-mq-client-id"
_DATE_TIME = "x-mq-date-time"
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1 Credential=(?P<key>[^,]*), ?SignedHeaders=x-mq-date-time, ?Signature=(?P<signature>[0-9a-fA-F]+)"
)
_UNSUPPORTED = ("UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription", "PullMessage")
_ONLY = "pull consumers, offsets and lite topics are not supported; use a push consumer or a simple consumer"


def parse_keys(text: str) -> dict[str, str]:
    """Access keys and their secrets, from YAML with a line `key: secret` for each.

    Raises:
        ConfigError: the text is anything else; the error shows nothing of it.
    """
    try:
        found = yaml_texts.load(text)
    except yaml.YAMLError:
        found = None
    if isinstance(found, dict) and found:
        keys = {str(key): secret for key, secret in found.items() if isinstance(secret, str) and secret}
        if len(keys) == len(found):
            return keys
    msg = "--access-keys: the text is not a list of keys; write a line `key: secret` for each, numbers in quotes"
    raise ConfigError(msg)


class Caller(NamedTuple):
    """The client that calls.

    Attributes:
        client: the id that the client gives itself.
        key: its access key; None without a valid signature, which only a gateway without keys admits.
    """

    client: str
    key: str | None


class Access:
    """Checks the metadata of each call; without any keys everybody may call.

    A client signs a time that it writes by its own clock and zone. So a signature proves that somebody had the secret,
    but not when. Connections that may be overheard need TLS.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """The client that sent this metadata.

        Raises:
            GatewayRefusal: `UNAUTHORIZED`, or `CLIENT_ID_REQUIRED`.
        """
        values = {name: value for name, value in metadata if isinstance(value, str)}
        key = self._signer(values)
        if self._keys and key is None:
            msg = "the call has no valid signature; set the client's credentials to a key of the gateway's access keys"
            raise GatewayRefusal(msg, "UNAUTHORIZED")
        client = values.get(CLIENT_ID, "")
        if not client:
            msg = f"the call has no {CLIENT_ID}; RocketMQ 5's clients send it"
            raise GatewayRefusal(msg, "CLIENT_ID_REQUIRED")
        return Caller(client, key)

    def _signer(self, values: Mapping[str, str]) -> str | None:
        """The access key whose secret made the signature; None without a valid signature."""
        given = _AUTHORIZATION.fullmatch(values.get("authorization", ""))
        if given is None:
            return None
        key = given["key"].partition("/")[0]  # some clients add a region and a service
        secret = self._keys.get(key)
        if secret is None:
            return None
        expected = hmac.new(secret.encode(), values.get(_DATE_TIME, "").encode(), "sha1").hexdigest()
        return key if hmac.compare_digest(expected, given["signature"].lower()) else None


class Entry(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Admits supported calls by their metadata alone. Others get a RocketMQ status, and their bodies stay unread."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """The handler of the call: the service's, or one that answers with a refusal."""
        name = call.method.rpartition("/")[2]
        try:
            self._access.caller(call.invocation_metadata)
            if name in _UNSUPPORTED:
                raise GatewayRefusal(_ONLY, "UNSUPPORTED")
        except GatewayRefusal as error:
            return _refusal(name, error)
        return await continuation(call)


def _refusal(name: str, error: GatewayRefusal) -> Any:
    """Answers without reading the request: gRPC reads a streamed request only when the handler asks for it."""
    response = getattr(services, f"{name}Response", services.TelemetryCommand)

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Proto]:
        yield response(status=status_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse, response_serializer=response.SerializeToString)
