"""`/metrics` for Prometheus and `/healthz` for a supervisor of processes, on a port of the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from commitlake.errors import SetupError
from commitlake.spark import preflight

log = logging.getLogger(__name__)

_FRESH_S = 15.0
"""Requests within so long share one answer, since each answer reads the tables."""
_REQUEST_S = 30.0
"""A client that connects and asks nothing, or does not read the answer, keeps a thread and a socket for so long."""


class KeptMetrics:
    """A collector that keeps its answer for a while."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect, self._lock = collect, threading.Lock()
        self._kept: list[Metric] = []
        self._kept_at = float("-inf")

    def collect(self) -> list[Metric]:
        """The metrics of now, or of some seconds ago."""
        with self._lock:
            if time.monotonic() - self._kept_at > _FRESH_S:
                self._kept = list(self._collect())
                self._kept_at = time.monotonic()
            return self._kept

    def describe(self) -> list[Metric]:
        """None: registering must not read the tables."""
        return []


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = preflight.family(host)
        super().__init__((host, port), handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs that the client has gone; Python's own handler writes a stack trace."""
        log.debug("no answer to %s", client_address, exc_info=True)


@contextmanager
def serving(
    host: str, port: int, collect: Callable[[], Iterable[Metric]], health: Callable[[], str | None]
) -> Iterator[int]:
    """Serve while the context lasts; yields the port, where 0 was given one that is free.

    Raises:
        SetupError: the port is taken.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(KeptMetrics(collect))
    try:
        server = _Server(host, port, _handler(registry, health))
    except OSError as error:
        msg = f"metrics.port: cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 for none"
        raise SetupError(msg) from error
    thread = threading.Thread(target=server.serve_forever, name="commitlake-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _handler(registry: CollectorRegistry, health: Callable[[], str | None]) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            try:
                answer = self._answer()
            except Exception as error:
                log.warning("no metrics: %s", error)
                answer = 500, f"{type(error).__name__}: {error}\n".encode(), "text/plain"
            self._send(*answer)

        def _answer(self) -> tuple[int, bytes, str]:
            if self.path == "/metrics":
                return 200, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
            if self.path == "/healthz":
                wrong = health()
                return 200 if wrong is None else 503, f"{wrong or 'ok'}\n".encode(), "text/plain"
            return 404, b"/metrics and /healthz are here\n", "text/plain"

        def _send(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs no request."""

    return MetricsHandler
