"""The page about the last hours: its numbers, and what a browser draws where there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.lake import ended
from tests.support.story import Story
from typer.testing import CliRunner

from commitlake.protocol.durations import HOUR_MS
from commitlake.tools.cli.app import app
from commitlake.tools.report import charts
from commitlake.tools.report.page import _length

MEASURE = """<script>
const shown = (kind) => [...document.querySelectorAll(kind)].filter((e) => e.getBoundingClientRect().height > 0);
document.title = JSON.stringify({
  wide: document.documentElement.scrollWidth > innerWidth, width: innerWidth,
  bars: shown("rect.committed").length, dots: shown("circle.p99").length, cards: shown("section").length,
  rows: shown("section.wide tbody tr").length, ground: getComputedStyle(document.body).backgroundColor,
  outside: shown("svg text").filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length,
});
</script>"""
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(scope="module")
def page(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "page.html"
    words = ["report", f"--out={place}", "--since=2h", f"--set=warehouse={story.lake.warehouse}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return place


def drawn(page: Path, place: Path, size: str, *more: str) -> dict[str, Any]:
    """What a browser says of the page in a window of that size."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    measured = place / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    own = (f"--user-data-dir={place}/profile", f"--window-size={size}")
    done = subprocess.run(
        [browser, *QUIET, *more, *own, "--dump-dom", measured.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(html.unescape(re.findall("<title>(.*?)</title>", done.stdout)[0]))  # type: ignore[no-any-return]


def test_the_page_has_the_numbers_of_the_tables_and_needs_no_network(story: Story, page: Path) -> None:
    text = page.read_text()
    assert "<title>CommitLake: the last 2 hours</title>" in text
    assert _length(HOUR_MS) == "hour"
    tiles = re.findall(r"<b>([\d,]+)</b><span>([\w ]+)</span>", text)
    states = Counter(row["state"] for row in ended(story.lake).values())
    shown = {
        name: int(count.replace(",", "")) for count, name in re.findall(r"<b>([\d,]+)</b><span>([\w ]+)</span>", text)
    }
    assert len(tiles) > 1
    assert {name: shown[name.lower().replace("_", " ")] for name in states} == dict(states)
    assert shown["rejected"] == len(story.lake.rows("rejected"))
    assert re.findall(r"(?:src|href)=(?!\"#)|https?://|@import|url\(", text) == []
    assert set(re.findall(r'href="#(\w+)"', text)) <= set(re.findall(r"section[^>]* id=(\w+)", text))
    assert re.findall(r"<b>(ok|LOOK)</b> (verdict|coordinator): ", text) == [
        ("LOOK", "verdict"),
        ("LOOK", "coordinator"),
    ]
    assert "none runs; the last one was epoch" in text
    assert "commitlake tx show -- " in text


@pytest.mark.parametrize("size", ["500,900", "1280,900"])  # Chromium makes no narrower window
def test_a_browser_draws_all_of_it_in_its_width(page: Path, tmp_path: Path, size: str) -> None:
    found = drawn(page, tmp_path, size)
    assert not found["wide"], "the page must not be wider than the window"
    assert found["bars"] >= 1
    assert found["dots"] >= 1
    assert found["cards"] == page.read_text().count("<section") >= 9
    assert found["rows"] >= 1
    assert found["outside"] == 0


def test_the_page_is_light_or_dark_as_the_reader_has_it(page: Path, tmp_path: Path) -> None:
    light = drawn(page, tmp_path, "800,600", "--blink-settings=preferredColorScheme=1")["ground"]
    dark = drawn(page, tmp_path, "800,600", "--blink-settings=preferredColorScheme=0")["ground"]
    assert (light, dark) == ("rgb(251, 251, 250)", "rgb(18, 21, 26)")


def test_charts_escape_what_others_have_named_and_scale_to_their_highest_value() -> None:
    assert "<b>" not in charts.lying({"<b>": 3}, "a & b")
    assert "a &amp; b" in charts.lying({"x": 3}, "a & b")
    line = charts.lines({"p50": [1.0, None, 2.0, 3.0]}, ("a", "b"), "t")
    assert line.count("<polyline") == 2
    assert charts.stacked({"COMMITTED": [0, 0]}, ("a", "b"), "t").count("<rect") == 0


def test_a_page_is_served_anew_for_each_who_asks(story: Story) -> None:
    command = [sys.executable, "-m", "commitlake.tools.cli", "report", "--serve"]
    words = [*command, f"--set=warehouse={story.lake.warehouse}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            for _ in range(2):
                with urllib.request.urlopen(address, timeout=60) as answer:
                    text = answer.read().decode()
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                assert 'http-equiv="refresh"' in text
        finally:
            server.terminate()  # Ctrl-C is ignored where a shell has put all this in the background
    assert server.returncode == -signal.SIGTERM


def test_a_served_page_tells_that_the_warehouse_can_not_be_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "commitlake.tools.cli", "report", "--serve", f"--set=warehouse={tmp_path}/none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            with pytest.raises(urllib.error.HTTPError) as answer:
                urllib.request.urlopen(server.stdout.readline().strip(), timeout=60)
            assert answer.value.code == 503
            text = answer.value.read().decode()
            assert "is not there; a relative path counts from" in text
            assert 'http-equiv="refresh"' in text, "it may be there a moment later"
        finally:
            server.terminate()
        assert "Traceback" not in server.stderr.read()
