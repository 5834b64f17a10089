"""`python -m commitlake.tools.cli`, and the script that spark-submit runs in the driver."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main()
