"""moto's S3 and DynamoDB in a process of its own, run by the Python of an environment that has moto: see `s3`.

S3 speaks HTTP. DynamoDB speaks TLS, since the client of Delta's log store knows no other. The first line of the output
names both ports.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

HOST = "127.0.0.1"


class OneAtATime:
    """One request after the other, as soon as its body is there.

    A put with a condition is atomic in S3 and in DynamoDB, and in moto it is a look followed by a write. A client that
    is paused in the middle of its body keeps nobody waiting.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application, self._lock = application, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: object) -> list[bytes]:
        source = environ["wsgi.input"]
        is_whole = environ.get("wsgi.input_terminated")  # a body in chunks
        environ["wsgi.input"] = io.BytesIO(
            source.read(*([] if is_whole else [int(environ.get("CONTENT_LENGTH") or 0)]))
        )
        with self._lock:
            return list(self._application(environ, start_response))


class Handler(WSGIRequestHandler):  # type: ignore[misc]
    """Connections stay open; a line for each request says when it came, of which client, and what it was."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        client, what = self.headers.get("User-Agent", "-").split(" ")[0], self.headers.get("X-Amz-Target", self.path)
        print(f"{time.time():.3f} {client} {self.command} {what} {code} {size}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    app = OneAtATime(DomainDispatcherApplication(create_backend_app))
    plain = make_server(HOST, 0, app, threaded=True, request_handler=Handler)
    secure = make_server(HOST, 0, app, threaded=True, request_handler=Handler, ssl_context="adhoc")
    threading.Thread(target=secure.serve_forever, daemon=True).start()
    print(json.dumps({"s3": plain.port, "dynamodb": secure.port}), flush=True)
    plain.serve_forever()
