"""`/healthz` of a process that stands by, and who asks for it and goes away."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from pathlib import Path

import pytest
from tests.support.cluster import free_port
from tests.support.polling import wait_for

from commitlake.config import from_mapping
from commitlake.coordinator.metrics import server
from commitlake.coordinator.optional_services import standing_by
from commitlake.errors import SetupError
from commitlake.spark import preflight


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])  # the last ones as on a machine without IPv4
def test_a_standby_is_well_and_one_without_the_port_goes_on_with_a_warning(
    caplog: pytest.LogCaptureFixture, host: str
) -> None:
    port, name = free_port(), f"[{host}]" if ":" in host else host
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    conf = from_mapping({"metrics.port": port, "metrics.host": host})
    preflight.check_coordinator(conf, is_shared=lambda: False)
    with standing_by(conf):
        assert urllib.request.urlopen(f"http://{name}:{port}/healthz", timeout=5).status == 200
        assert urllib.request.urlopen(f"http://{name}:{port}/metrics", timeout=5).read() == b""
        assert not caplog.text
        with pytest.raises(SetupError, match=f"metrics.port: cannot listen on {host}:{port}: Address already in use;"):
            preflight.check_coordinator(conf, is_shared=lambda: False)
        with standing_by(conf):
            assert f"no /healthz while standing by: metrics.port: cannot listen on {host}:{port}" in caplog.text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{name}:{port}/healthz", timeout=5)


def test_who_asks_nothing_or_goes_away_leaves_no_thread_and_no_stack(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As a port scan, a load balancer that resets connections, or a client whose machine has lost its power."""
    monkeypatch.setattr(server, "_REQUEST_S", 0.5)
    asked, goes_on = threading.Event(), threading.Event()

    def health() -> None:
        asked.set()
        goes_on.wait(30)

    before = threading.active_count()
    with server.serving("127.0.0.1", 0, tuple, health) as port, socket.create_connection(("127.0.0.1", port)) as silent:
        for request in (b"GET /healthz HTTP/1.1\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port)) as gone:
                gone.sendall(request)
                assert asked.wait(30)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        goes_on.set()
        wait_for(lambda: threading.active_count() == before + 1, 20)
        assert silent.recv(1) == b""
    assert (capfd.readouterr().err, caplog.text) == ("", "")
