"""`python -m commitlake.cli`, and the script that spark-submit runs in the driver."""

from __future__ import annotations

from commitlake.cli import app

app.main()
