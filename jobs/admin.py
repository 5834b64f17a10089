"""Reopen a discarded transaction, or end a pending one by force: spark-submit jobs/admin.py --help."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main("admin")
