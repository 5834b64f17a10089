"""Delete old rows, compact tables, remove unused files: spark-submit jobs/maintain.py --conf FILE."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main("maintain")
