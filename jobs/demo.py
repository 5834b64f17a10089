"""The demo: spark-submit jobs/demo.py."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main("demo")
