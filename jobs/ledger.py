"""What became of transactions.

./spark-submit.sh ledger --conf FILE (TRANSACTION_ID | --pending | --summary)
"""

from __future__ import annotations

from commitlake.ops import commands
from commitlake.spark import process

if __name__ == "__main__":
    process.main(commands.ledger)
