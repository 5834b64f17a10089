"""`/healthz` of a process that stands by."""

from __future__ import annotations

import urllib.request

import pytest
from tests.support.cluster import free_port

from commitlake.config import from_mapping
from commitlake.coordinator.companions import standing_by


def test_a_standby_is_well_and_one_without_the_port_goes_on_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    conf = from_mapping({"metrics.port": port})
    with standing_by(conf):
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).status == 200
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read() == b""
        assert not caplog.text
        with standing_by(conf):
            assert f"no /healthz while standing by: metrics.port: cannot listen on 127.0.0.1:{port}" in caplog.text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)
