"""A process that is killed in the middle of a `delta_transaction`: JSON of where and when is its argument."""

from __future__ import annotations

import json
import os
import signal
import sys

import commitlake
from commitlake import Message
from commitlake.spark import session


def main() -> None:
    """Writes to as many tables as it should, and kills itself."""
    given = json.loads(sys.argv[1])
    spark = session.build(short_lived=True)
    with commitlake.delta_transaction(spark, given["conf"], "nightly", deadline=given["deadline"]) as tx:
        tx.send(Message(given["topic"], "killed"))
        options = tx.delta_options(*given["places"])
        for place in given["places"][: given["writes"]]:
            spark.range(3).write.format("delta").mode("append").options(**options).save(place)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
