"""The coordinator, until SIGTERM or Ctrl-C: spark-submit jobs/run.py --conf FILE."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main("run")
