"""Whether the tables agree, message by message.

./spark-submit.sh audit --conf FILE
"""

from __future__ import annotations

from commitlake.ops import commands
from commitlake.spark import process

if __name__ == "__main__":
    process.main(commands.audit)
