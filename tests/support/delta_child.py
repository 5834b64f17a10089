"""A process that kills itself in a transaction with Delta tables; JSON of where and when is its argument."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import commitlake
from commitlake import Message
from commitlake.clients.delta import marks
from commitlake.spark import session


def in_a_transaction(given: dict[str, Any]) -> None:
    """Writes to as many tables as it should, and kills itself in the middle of a `delta_transaction`."""
    spark = session.build(short_lived=True)
    with commitlake.delta_transaction(spark, given["conf"], "nightly", deadline=given["deadline"]) as tx:
        tx.send(Message(given["topic"], "killed"))
        options = tx.delta_options(*given["places"])
        for place in given["places"][: given["writes"]]:
            spark.range(3).write.format("delta").mode("append").options(**options).save(place)
        os.kill(os.getpid(), signal.SIGKILL)


def in_a_sink(given: dict[str, Any]) -> None:
    """Runs a streaming query with a sink; kills itself before or after the commit that decides."""
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
    of_what = json.loads(sys.argv[1])
    in_a_sink(of_what) if "moment" in of_what else in_a_transaction(of_what)
