"""What became of transactions: spark-submit jobs/ledger.py --conf FILE (TRANSACTION_ID | --pending | --summary)."""

from __future__ import annotations

from commitlake.tools.cli import app

app.main("ledger")
