"""Whether all tables agree, message by message: spark-submit jobs/audit.py --conf FILE."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main("audit")
