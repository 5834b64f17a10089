"""The work of `commitlake report`: writes the page, or serves it."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from commitlake.config import Config
from commitlake.errors import SetupError
from commitlake.protocol.clock import now_ms
from commitlake.reading.questions.tables import opened
from commitlake.tools.report.figures import read
from commitlake.tools.report.page import page

_REFRESH_S = 30


def make(settings: Config, since_ms: int, refresh_s: int | None = None) -> str:
    """The page of the last `since_ms`."""
    now = now_ms()
    with opened(settings.warehouse) as tables:
        return page(read(tables, now - since_ms, now), settings.warehouse, refresh_s)


def write(settings: Config, since_ms: int, out: Path) -> int:
    """Write the page to a file; the exit code."""
    text = make(settings, since_ms)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"--out: cannot write {out}: {error.strerror}; name a file in a directory that is there"
        raise SetupError(msg) from error
    print(f"{out}: {len(text) / 1024:.0f} KiB")
    return 0


def serve(settings: Config, since_ms: int, port: int) -> int:
    """Serve the page on the loopback address until Ctrl-C, made anew for each request."""

    class ReportHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = make(settings, since_ms, _REFRESH_S).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing of each request."""

    with ThreadingHTTPServer(("127.0.0.1", port), ReportHandler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
