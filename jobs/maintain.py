"""Delete old rows, compact tables, and remove files that nobody uses any more.

./spark-submit.sh maintain --conf FILE [--set key=value]...
"""

from __future__ import annotations

from commitlake.ops import commands
from commitlake.spark import process

if __name__ == "__main__":
    process.main(commands.maintain)
