"""A streaming query with a sink whose process kills itself before or after the commit that decides."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import commitlake
from commitlake.clients.delta import marks
from commitlake.spark import session


def main() -> None:
    """Runs the query until it is killed; JSON of all that it needs is the argument."""
    given = json.loads(sys.argv[1])
    real = marks.put

    def put(*words: Any, **named: Any) -> bool:
        if given["moment"] == "after":
            real(*words, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    marks.put = put
    rows = session.build(short_lived=True).readStream.format("delta").load(given["source"])
    to = commitlake.sink(given["conf"], given["topic"], name=given["topic"], group="nightly", **given["columns"])
    writer = rows.writeStream.foreachBatch(to).option("checkpointLocation", given["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
