"""A question to a service on HTTP that answers with JSON: Unity Catalog, or a registry of schemas."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from commitlake.config.terminal import printable
from commitlake.errors import AnswerError

_MOST_BYTES, _MOST_SHOWN = 16 << 20, 200
"""Of an answer, and of one that is an error."""


class _NoRedirect(HTTPRedirectHandler):
    """Leaves an answer that leads elsewhere as it is: a token must not go there, and without it nothing is answered."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


@cache
def _opener() -> OpenerDirector:
    return build_opener(_NoRedirect)


def asked(url: str, timeout_s: float, authorization: str = "", body: object = None) -> dict[str, Any]:
    """The answer, an object of JSON.

    Args:
        url: with the path.
        timeout_s: how long it may take to connect, and each part of the answer to come.
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
