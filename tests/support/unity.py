"""Unity Catalog's REST API as far as readers need it: a table's place, and temporary credentials for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

PATH = "/api/2.1/unity-catalog"


@dataclass
class Unity:
    """What the server knows, and what it was asked.

    Attributes:
        tables: places by full name.
        told: the answer about credentials.
        token: the one that it wants; None for none.
        failure: the status that it answers with, in place of an answer.
        redirects_to: another server.
        asked: method and path of each request, with its body.
        tokens: what came as `Authorization`.
    """

    tables: dict[str, str] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    token: str | None = None
    failure: int | None = None
    redirects_to: str | None = None
    asked: list[tuple[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.failure is not None:
            return self.failure, {"error_code": "X", "message": "not now"}
        kind, _, name = path.removeprefix(f"{PATH}/").partition("/")
        if (method, kind) == ("POST", "temporary-table-credentials"):
            return 200, {"gcp_oauth_token": None, **self.told} if body["operation"] == "READ" else None
        if (method, kind) == ("GET", "tables") and unquote(name) in self.tables:
            place = self.tables[unquote(name)]
            return 200, {"table_id": f"id of {place}", "storage_location": place, "table_type": "MANAGED"}
        return 404, {"error_code": "TABLE_NOT_FOUND", "message": f"Table '{name}' does not exist."}

    def conf(self, **more: object) -> dict[str, object]:
        return {"warehouse": "schema:main.lake", "catalog.url": f"{self.url}/", **more}


@contextmanager
def serving(unity: Unity) -> Iterator[Unity]:
    """A server on a loopback port while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(given) if given else None
            unity.asked.append((f"{self.command} {self.path.removeprefix(PATH)}", body))
            unity.tokens.append(self.headers.get("Authorization"))
            status, told = unity.answer(self.command, self.path, body)
            if unity.token is not None and self.headers.get("Authorization") != f"Bearer {unity.token}":
                status, told = 401, {"error_code": "UNAUTHENTICATED", "message": "Invalid access token"}
            self.send_response(302 if unity.redirects_to else status)
            if unity.redirects_to:
                self.send_header("Location", unity.redirects_to + self.path.removeprefix(PATH))
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        do_GET = do_POST = _serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        unity.url = f"http://127.0.0.1:{server.server_port}{PATH}"
        try:
            yield unity
        finally:
            server.shutdown()
            thread.join()
