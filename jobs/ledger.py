"""What became of transactions.

./spark-submit.sh ledger --conf FILE (TRANSACTION_ID | --pending | --summary)
"""

from __future__ import annotations

from commitlake import job
from commitlake.ops import commands

if __name__ == "__main__":
    job.main(commands.ledger)
