"""Whether all tables agree, message by message: spark-submit jobs/audit.py --conf FILE."""

from __future__ import annotations

from commitlake.cli import app

app.main("audit")
