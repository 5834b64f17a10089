"""Makes the pictures of the documents from the tables of a warehouse: the terminal as SVG, the page as PNG.

.venv/bin/python docs/pictures.py WAREHOUSE
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from commitlake.reading.questions.tables import opened

PLACE = Path(__file__).with_name("pictures")
COLUMNS = 120
_BROWSER = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1170")


def main() -> None:
    """Makes them all."""
    warehouse = sys.argv[1]
    PLACE.mkdir(exist_ok=True)
    with opened(warehouse) as tables:
        tables.open("transactions")
        sql = "SELECT transaction_id FROM transactions ORDER BY checks DESC, resolved_at DESC LIMIT 1"
        some = tables.rows(sql)["transaction_id"][0].as_py()
    terminal("tx-show", warehouse, "tx", "show", some)
    page(warehouse)


def terminal(name: str, warehouse: str, *words: str) -> None:
    """What a command shows on a terminal."""
    command = [sys.executable, "-m", "commitlake.tools.cli", *words, f"--set=warehouse={warehouse}"]
    shown = subprocess.run(
        command, env={**os.environ, "COMMITLAKE_TERMINAL_COLUMNS": str(COLUMNS)}, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True)
    console.print(Text.from_ansi(shown.rstrip()))
    console.save_svg(str(PLACE / f"{name}.svg"), title=f"commitlake {' '.join(words)}")


def page(warehouse: str) -> None:
    """The report as a browser draws it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium: the picture of the report stays as it is")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "report.html"
        command = [sys.executable, "-m", "commitlake.tools.cli", "report", f"--out={file}", "--since=1h"]
        subprocess.run([*command, f"--set=warehouse={warehouse}"], check=True, stdout=subprocess.DEVNULL)
        own = (f"--user-data-dir={place}/profile", f"--screenshot={PLACE / 'report.png'}")
        subprocess.run([browser, *_BROWSER, *own, file.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
