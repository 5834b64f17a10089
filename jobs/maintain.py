"""Delete old rows, compact tables, and remove files that nobody uses any more.

./spark-submit.sh maintain --conf FILE [--set key=value]...
"""

from __future__ import annotations

from commitlake import job
from commitlake.ops import commands

if __name__ == "__main__":
    job.main(commands.maintain)
