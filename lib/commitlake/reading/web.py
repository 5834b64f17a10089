"""A question to a service on HTTP that answers with JSON: Unity Catalog, or a registry of schemas."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from commitlake.config.terminal import printable
from commitlake.errors import AnswerError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MOST_BYTES, _MOST_SHOWN = 16 << 20, 200
"""Of an answer, and of one that is an error."""


class _InTime(RawIOBase):
    """The bytes of a socket, until its time-out is over, counted from now; by itself it limits each read alone."""

    def __init__(self, source: RawIOBase, connected: socket.socket) -> None:
        self._source, self._socket = source, connected
        self._until_s = time.monotonic() + (connected.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            msg = "timed out"
            raise TimeoutError(msg)
        self._socket.settimeout(left_s)
        return self._source.readinto(buffer)

    def close(self) -> None:
        self._source.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp = BufferedReader(_InTime(self.fp.detach(), sock))


class _Plain(HTTPConnection):
    response_class = _Response


class _Secure(HTTPSConnection):
    response_class = _Response


class _PlainHandler(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Plain, req)


class _SecureHandler(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Secure, req)


class _NoRedirect(HTTPRedirectHandler):
    """Leaves an answer that leads elsewhere as it is: a token must not go there, and without it nothing is answered."""

    def redirect_request(self, *_: Any) -> None:
        """Follows none."""


@cache
def _opener() -> OpenerDirector:
    return build_opener(_NoRedirect, _PlainHandler, _SecureHandler)


def asked(url: str, timeout_s: float, authorization: str = "", body: object = None) -> dict[str, Any]:
    """The answer, an object of JSON.

    Args:
        url: with the path.
        timeout_s: how long it may take to connect, and then the whole answer to come.
        authorization: the header, which no error shows; empty for none.
        body: is posted, as JSON; None: the question is a GET.

    Raises:
        AnswerError: there is no such answer.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": authorization} if authorization else {})
    request = Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with _opener().open(request, timeout=timeout_s) as answer:
            return dict(json.loads(answer.read(_MOST_BYTES)))
    except HTTPError as error:
        raise AnswerError(_told(error, authorization.rpartition(" ")[2]), error.code) from None
    except (OSError, HTTPException) as error:
        msg = f"does not answer: {getattr(error, 'reason', '') or error or type(error).__name__}"
        raise AnswerError(msg) from None
    except (ValueError, TypeError, RecursionError) as error:
        msg = f"gives no object of JSON: {error}"
        raise AnswerError(msg) from None


def _told(error: HTTPError, hidden: str) -> str:
    said = ""
    with error, suppress(OSError, HTTPException):
        to = error.headers.get("Location")
        said = f"go to {to}" if to else error.read(1_000).decode(errors="replace")
    said = printable(" ".join(said.split()))
    said = said.replace(hidden, "***") if hidden else said
    return f"answers {error.code}: {said[:_MOST_SHOWN] or error.reason}"
