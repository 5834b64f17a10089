"""Whether the tables agree, message by message.

./spark-submit.sh audit --conf FILE
"""

from __future__ import annotations

from commitlake import job
from commitlake.ops import commands

if __name__ == "__main__":
    job.main(commands.audit)
