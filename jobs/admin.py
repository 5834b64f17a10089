"""Reopen a discarded transaction, or end a pending one by force.

./spark-submit.sh admin --conf FILE (resume | commit | rollback) TRANSACTION_ID --remark TEXT
"""

from __future__ import annotations

from commitlake.ops import commands
from commitlake.spark import process

if __name__ == "__main__":
    process.main(commands.admin)
